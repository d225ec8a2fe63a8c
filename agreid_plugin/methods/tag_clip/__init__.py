"""TAG-CLIP: text-based aerial-ground person retrieval (AAAI 2026).

A CLIP some of whose image blocks route each image to experts of its view (HR-MoE), trained so that the global feature
is independent of the view (viewpoint decoupling), with local features of selected tokens beside it (TSE). In the
paper's order:

- Eqs. 1-2: N-ITC and R-ITC: `losses.itc`
- Eqs. 3-8: HR-MoE: `hrmoe`, in the towers of `encoder`; plain form: `reference`
- Eqs. 9-10: viewpoint decoupling: `method`
- Eqs. 11-13: losses: `method`
- Eq. 14: similarity: `method.Features.embedding`

TSE is `nn.token_selection`; `convert` reads released checkpoints.
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
