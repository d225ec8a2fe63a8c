"""Builds SVPR-ReID's backbone of a variant, whole or with modules left out as in Table 5."""

from __future__ import annotations

from collections.abc import Sequence

from agreid_plugin.data.attributes import AttributeSchema
from agreid_plugin.errors import InputError
from agreid_plugin.methods.svpr.asmoe import ASMoE
from agreid_plugin.methods.svpr.backbone import SVPRBackbone
from agreid_plugin.methods.svpr.cvpr import GatedRefinement, MomentumRefinement
from agreid_plugin.methods.svpr.text import SentenceEncoder
from agreid_plugin.methods.svpr.variants import Variant, get_variant
from agreid_plugin.methods.svpr.vdfe import VDFE, ViewDecoupling, ViewToken
from agreid_plugin.nn.clip import ImageTower, TextTower


def build_backbone(
    image: ImageTower,
    text: TextTower | None,
    words: Sequence[str],
    schema: AttributeSchema | None,
    *,
    variant: str = "paper",
    cvpr: bool = True,
    stages: int = 3,
    inject_at: int | None = None,
    prompts: int = 4,
    experts: int = 4,
    expert_top_k: int | None = None,
    attribute_ratio: float = 0.7,
    keep: float = 0.5,
    momentum: float = 0.1,
    sentences: str | None = None,
) -> SVPRBackbone:
    """Build the backbone of a variant.

    Args:
        image: the image tower.
        text: the text tower, which is not kept where no sentence is read.
        words: the views' words; empty for a backbone without VDFE.
        schema: the attributes; None for a backbone without ASMoE.
        variant: `paper` or `released`.
        cvpr: whether patches are refined.
        stages: N, stages of the refinement.
        inject_at: i, block before which the view's token joins the others; the last without a number.
        prompts: learned prompts in a sentence.
        experts: experts for attributes.
        expert_top_k: experts that count for an attribute; the variant's without a number.
        attribute_ratio: share of the attributes that are chosen.
        keep: share of the candidates that a stage keeps.
        momentum: gamma in Eq. 8.
        sentences: style of the attributes' sentences; the variant's without a name.
    """
    switches = get_variant(variant)
    side = _text_side(text, words, schema, prompts, switches, sentences) if words or schema else None
    vdfe = asmoe = refinement = None
    if side and words:
        decoupling = ViewDecoupling(image.width, switches.scaled, switches.entering_key, switches.view_mlp)
        vdfe = VDFE(ViewToken(side.tower.embed_dim, image.width, prompts), decoupling, inject_at)
    if side and schema:
        top_k = switches.expert_top_k if expert_top_k is None else expert_top_k
        sizes = (schema.sizes, experts, top_k, attribute_ratio)
        asmoe = ASMoE(side.tower.embed_dim, image.width, *sizes, scored_experts=switches.scored_experts)
    if cvpr:
        kind = MomentumRefinement if switches.momentum else GatedRefinement
        refinement = kind(image.width, image.num_patches, stages, keep, momentum)
    return SVPRBackbone(image, side, vdfe, asmoe, refinement)


def _text_side(
    text: TextTower | None,
    words: Sequence[str],
    schema: AttributeSchema | None,
    prompts: int,
    switches: Variant,
    style: str | None,
) -> SentenceEncoder:
    if text is None:
        raise InputError("text=None, but VDFE and ASMoE read sentences: give the text tower, or leave both out")
    return SentenceEncoder(text, words, schema, prompts, switches.word_key, switches.replaced, style or switches.style)
