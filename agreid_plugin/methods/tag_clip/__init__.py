"""TAG-CLIP: text-based aerial-ground person retrieval (AAAI 2026).

A CLIP some of whose image blocks send each image to experts of its view (HR-MoE), learned so that the global feature
sheds the view (viewpoint decoupling), with local features of selected tokens beside it (TSE).
"""

from agreid_plugin.methods.tag_clip.encoder import BLOCKS, Encoded, ImageEncoder, read_texts
from agreid_plugin.methods.tag_clip.hrmoe import SAMPLING, HRMoEBlock, MoEBlock, Routed
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
    "Decoupling",
    "Encoded",
    "Features",
    "HRMoEBlock",
    "ImageEncoder",
    "ImageFeatures",
    "MoEBlock",
    "OrthogonalHinge",
    "Routed",
    "TAGCLIPOutputs",
    "TextFeatures",
    "read_texts",
]
