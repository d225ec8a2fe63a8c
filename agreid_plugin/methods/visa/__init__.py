"""ViSA: View-aware Semantic Alignment (CVPR 2026).

An encoder separates identity from view (VAB), experts turn both into query tokens (ETGM), each query is moved among
its nearest patches, and all are fused to one local feature (DLFM). In the paper's order:

- Sec. 3.2: VAB: `nn.view_token_vit.DecoupledEncoder`, built by `backbone.build_vab`
- Sec. 3.3, Eqs. 4-7: ETGM: `etgm`, with the experts and routers of `nn.experts`
- Sec. 3.4, Eqs. 8-13: DLFM: `dlfm`, with the graph layer of `nn.graph`
- Sec. 3.5, Eqs. 14-20: heads and losses: `method`

`reference` has the equations as printed, with loops: the fast modules are tested against it. `variants` lists where the
paper and the released code differ; `convert` reads released checkpoints.
"""

from agreid_plugin.methods.visa.backbone import ViSABackbone, ViSAFeatures, build_backbone, build_vab
from agreid_plugin.methods.visa.dlfm import DLFM, GraphBranch
from agreid_plugin.methods.visa.etgm import ETGM, PlainQueries, Queries
from agreid_plugin.methods.visa.method import ViSA, ViSAOutputs
from agreid_plugin.methods.visa.variants import VARIANTS, Variant

__all__ = [
    "DLFM",
    "ETGM",
    "VARIANTS",
    "GraphBranch",
    "PlainQueries",
    "Queries",
    "Variant",
    "ViSA",
    "ViSABackbone",
    "ViSAFeatures",
    "ViSAOutputs",
    "build_backbone",
    "build_vab",
]
