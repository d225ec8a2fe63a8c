"""SVPR-ReID: Semantic-driven Visual Progressive Refinement (AAAI 2026).

CLIP's text encoder tells the image encoder the view, which features then shed (VDFE); experts read attributes that the
text names (ASMoE); and a query of both refines the patches that matter (CVPR).
"""

from agreid_plugin.methods.svpr.asmoe import ASMoE, AttributeFeatures
from agreid_plugin.methods.svpr.backbone import SVPRBackbone, SVPRFeatures
from agreid_plugin.methods.svpr.cvpr import GatedRefinement, MomentumRefinement, RefinementOutputs
from agreid_plugin.methods.svpr.method import SVPR, SVPROutputs
from agreid_plugin.methods.svpr.text import WORDS, SentenceEncoder, ViewText, ViewWords, encode_per_image
from agreid_plugin.methods.svpr.variants import VARIANTS, Variant
from agreid_plugin.methods.svpr.vdfe import VDFE

__all__ = [
    "SVPR",
    "VARIANTS",
    "VDFE",
    "WORDS",
    "ASMoE",
    "AttributeFeatures",
    "GatedRefinement",
    "MomentumRefinement",
    "RefinementOutputs",
    "SVPRBackbone",
    "SVPRFeatures",
    "SVPROutputs",
    "SentenceEncoder",
    "Variant",
    "ViewText",
    "ViewWords",
    "encode_per_image",
]
