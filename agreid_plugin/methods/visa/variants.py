"""Variants of ViSA: the paper's text, and the released code."""

from __future__ import annotations

from dataclasses import dataclass

from agreid_plugin.errors import require_known


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Switches for what differs between paper and released code. `projects/ViSA/README.md` has the table."""

    tokens_per_block: bool  # view tokens for every block (Sec. 3.2), not for the first only
    patches_per_query: bool  # each query chooses its patches (Eq. 8), not one choice by Z for a branch
    graph_per_branch: bool  # a graph layer for each branch (Eq. 12), not one for both
    graph_gradient: bool  # gradients reach queries and patches through the graph
    fuse_cls: bool  # the class token minus the view token enters the fusion (Eq. 13), not a learned one
    balance_weight: float  # lambda in Eq. 20
    neck_sees_cls: bool  # the head's norm keeps statistics of class tokens too; see `VDT`
    over_nonzero: bool  # cross-entropy over the images whose loss is not zero; see `IdentityLoss`


VARIANTS = {
    "paper": Variant(
        tokens_per_block=True,
        patches_per_query=True,
        graph_per_branch=True,
        graph_gradient=True,
        fuse_cls=True,
        balance_weight=1e-3,
        neck_sees_cls=False,
        over_nonzero=False,
    ),
    "released": Variant(
        tokens_per_block=False,
        patches_per_query=False,
        graph_per_branch=False,
        graph_gradient=False,
        fuse_cls=False,
        balance_weight=1e-4,
        neck_sees_cls=True,
        over_nonzero=True,
    ),
}


def get_variant(variant: str) -> Variant:
    """Return the variant of this name."""
    return VARIANTS[require_known("variant", variant, VARIANTS)]
