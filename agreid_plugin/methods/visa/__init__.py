"""ViSA: View-aware Semantic Alignment (CVPR 2026).

An encoder separates identity from view (VAB), experts turn both into query tokens (ETGM), each query is moved among
the patches it belongs to, and all are fused to one local feature (DLFM).
"""

from agreid_plugin.methods.visa.backbone import ViSABackbone, ViSAFeatures, build_backbone
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
]
