"""The two readings of SVPR-ReID: the paper's text, and what the released code does."""

from __future__ import annotations

from dataclasses import dataclass

from agreid_plugin.errors import require_known


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Where the paper and the released code part; where the paper is silent, both do as the released code.

    Two defects of the released code are not of either reading: features that depend on the other images of a batch, and
    a crash without attributes.
    """

    # View-decoupled feature extractor
    word_key: bool  # Eq. 1 attends to the output at the view's word, not to that of the whole sentence
    scaled: bool  # what the class token sheds (Eq. 3) is scaled by a learned number
    entering_key: bool  # the view token sheds what it reads of the class token on its way in (Eq. 4), not of f_cls
    view_mlp: bool  # a norm and two layers follow Eq. 4

    # Attribute-scattered mixture of experts
    replaced: bool  # prompts stand in the place of the sentence's X, rather than being added to them
    style: str  # of the attributes' sentences; see `data.sentences`
    expert_top_k: int | None  # experts that count for an attribute; all of them without a number
    scored_experts: bool  # attributes are scored by what the experts made of them (Eq. 7), not by what enters

    # Context-vision progressive refinement
    momentum: bool  # Eq. 8 on query and patches, which the next stage goes on from; otherwise a learned gate

    # Heads and losses
    one_head: bool  # Eq. 9 on all parts side by side, rather than on each
    embeds_attributes: bool  # f_asmoe is a part of the embedding
    view_head_classes: int | None  # of the view's head; as many as there are words without a number
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
    """Return the reading of this name."""
    return VARIANTS[require_known("variant", variant, VARIANTS)]
