"""SVPR-ReID: Semantic-driven Visual Progressive Refinement (AAAI 2026).

Sentences of CLIP's text encoder give the image encoder a token of the view, which is then subtracted from the features
(VDFE); experts predict the attributes that sentences name (ASMoE); and a query of both refines the patches that matter
(CVPR). In the paper's order:

- Eqs. 1-4: VDFE: `vdfe`, with the sentences of `text`
- Eqs. 5-7: ASMoE: `asmoe`
- Eq. 8: CVPR: `cvpr`
- Eqs. 9-12: heads and losses: `method`

`variants` lists where the paper and the released code differ; `convert` reads released checkpoints.
`text.encode_per_image` is the plain form of encoding each sentence once.
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
