"""L_reid of SVPR-ReID (Eq. 9), on one head or on several.

Shapes: B images, C width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from agreid_plugin.losses import OnFeatures
from agreid_plugin.types import Batch, HeadOutputs


def reid_terms(
    objectives: nn.ModuleDict, heads: Mapping[str, HeadOutputs], features: Mapping[str, Tensor], batch: Batch
) -> Iterator[tuple[str, Tensor]]:
    """Yield each objective of each head by name: that of the first head, plus the mean of the others'.

    Args:
        objectives: name -> loss.
        heads: ending of the name -> what a head gave; the first counts fully.
        features: ending of the name -> features without a head, (B, C), for losses of features alone.
        batch: the batch.
    """
    bare = {ending: HeadOutputs(values, values) for ending, values in features.items()}
    for name, loss in objectives.items():
        seen = {**heads, **bare} if isinstance(loss, OnFeatures) else heads
        for place, (ending, outputs) in enumerate(seen.items()):
            weight = 1 / (len(seen) - 1) if place else 1
            yield f"loss_{name}{ending}", weight * loss(outputs, batch)
