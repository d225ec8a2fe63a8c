"""Variants of SVPR-ReID: the paper's text, and the released code."""

from __future__ import annotations

from dataclasses import dataclass

from agreid_plugin.errors import require_known


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Switches for what differs between paper and released code; where the paper is silent, both follow the code.

    Neither variant has two defects of the released code: features that depend on the other images of a batch, and a
    crash without attributes.
    """

    # View-decoupled feature extractor
    word_key: bool  # Eq. 1 attends to the output at the view's word, not to that of the sentence
    scaled: bool  # what is subtracted from the class token (Eq. 3) is scaled by a learned number
    entering_key: bool  # Eq. 4 attends to the class token as the view token joined it, not to f_cls
    view_mlp: bool  # a norm and two layers follow Eq. 4

    # Attribute-scattered mixture of experts
    replaced: bool  # prompts replace the sentence's X, instead of being added to them
    style: str  # of the attributes' sentences; see `data.sentences`
    expert_top_k: int | None  # experts that count for an attribute; None for all
    scored_experts: bool  # attributes are scored by the outputs of the experts (Eq. 7), not by their inputs

    # Context-vision progressive refinement
    momentum: bool  # Eq. 8 on query and patches, which enter the next stage; otherwise a learned gate

    # Heads and losses
    one_head: bool  # Eq. 9 on all parts side by side, instead of on each
    embeds_attributes: bool  # f_asmoe is a part of the embedding
    view_head_classes: int | None  # of the view head; None for as many as there are words
    view_smoothing: float  # of the view's labels, divided among the number of identities
    attribute_weight: float  # beta in Eq. 12


VARIANTS = {
    "paper": Variant(
        word_key=False,
        scaled=False,
        entering_key=True,
        view_mlp=False,
        replaced=True,
        style="paper",
        expert_top_k=None,
        scored_experts=True,
        momentum=True,
        one_head=True,
        embeds_attributes=False,
        view_head_classes=None,
        view_smoothing=0.0,
        attribute_weight=0.1,
    ),
    "released": Variant(
        word_key=True,
        scaled=True,
        entering_key=False,
        view_mlp=True,
        replaced=False,
        style="released",
        expert_top_k=3,
        scored_experts=False,
        momentum=False,
        one_head=False,
        embeds_attributes=True,
        view_head_classes=3,
        view_smoothing=0.1,
        attribute_weight=0.05,
    ),
}


def get_variant(variant: str) -> Variant:
    """Return the variant of this name."""
    return VARIANTS[require_known("variant", variant, VARIANTS)]
