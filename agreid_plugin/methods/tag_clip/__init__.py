"""TAG-CLIP: text-based aerial-ground person retrieval (AAAI 2026).

A CLIP some of whose image blocks send each image to experts of its view (HR-MoE), learned so that the global feature
sheds the view (viewpoint decoupling), with local features of selected tokens beside it (TSE).
"""

from agreid_plugin.methods.tag_clip.encoder import BLOCKS, ImageEncoder, TowerOutputs, read_texts
from agreid_plugin.methods.tag_clip.hrmoe import SAMPLING, BlockRouting, HRMoEBlock, MoEBlock
from agreid_plugin.methods.tag_clip.method import (
    OBJECTIVES,
    TAGCLIP,
    Decoupling,
    Features,
    ImageFeatures,
    OrthogonalHinge,
    TAGCLIPOutputs,
    TextFeatures,
)

__all__ = [
    "BLOCKS",
    "OBJECTIVES",
    "SAMPLING",
    "TAGCLIP",
    "BlockRouting",
    "Decoupling",
    "Features",
    "HRMoEBlock",
    "ImageEncoder",
    "ImageFeatures",
    "MoEBlock",
    "OrthogonalHinge",
    "TAGCLIPOutputs",
    "TextFeatures",
    "TowerOutputs",
    "read_texts",
]
