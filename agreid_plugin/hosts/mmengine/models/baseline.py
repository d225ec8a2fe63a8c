"""Any backbone with one head, learned by any losses of identities; with VIAL it is VIF-AGReID.

Shapes: B images, D width of a feature.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmengine.model import BaseModule
from torch import Tensor, nn

from agreid_plugin.errors import InputError, said_of
from agreid_plugin.types import Batch, HeadOutputs, ReIDMethod


class ForeignBackbone(BaseModule):
    """A backbone of another toolbox; maps are averaged, and of several features the last is taken.

    Args:
        core: the network, which gives (B, D), (B, D, rows, cols), or a tuple or list of such.
        name: what messages call it.
        width: D.
    """

    def __init__(self, core: nn.Module, name: str, width: int):
        super().__init__()
        self.core, self.name, self.out_channels = core, name, width

    def forward(self, images: Tensor) -> tuple[Tensor]:
        """Return one feature an image: (B, 3, rows, cols) -> ((B, D),)."""
        with said_of(f"backbone {self.name}"):
            features = last_vectors(self.core(images))
        if features.shape[1] != self.out_channels:
            raise InputError(f"backbone {self.name} gives features of width {features.shape[1]}: set width to that")
        return (features,)


def last_vectors(features: Tensor | Sequence[Tensor]) -> Tensor:
    """Return one vector an image, of several the last; maps are averaged: (B, D) or (B, D, rows, cols) -> (B, D)."""
    last = features[-1] if isinstance(features, Sequence) else features
    if isinstance(last, Tensor) and last.dim() == 4:
        last = last.mean(dim=(2, 3))
    if not isinstance(last, Tensor) or last.dim() != 2:
        what = tuple(last.shape) if isinstance(last, Tensor) else type(last).__name__
        raise InputError(f"features={what} should be one vector or one map an image")
    return last


class Head(nn.Module):
    """A head under the names that fast-reid's Baseline gives it, so that weights go from host to host."""

    def __init__(self, neck: nn.Module):
        super().__init__()
        self.neck = neck

    def forward(self, features: Tensor, labels: Tensor | None = None) -> HeadOutputs:
        """Run the head on one feature an image: (B, D)."""
        return self.neck(features, labels)


class Baseline(ReIDMethod):
    """L is the sum of the objectives.

    Args:
        backbone: gives a tuple, whose last is one feature an image.
        neck: the head.
        objectives: name -> loss of the head.
    """

    def __init__(self, backbone: nn.Module, neck: nn.Module, objectives: nn.ModuleDict):
        super().__init__()
        self.backbone, self.heads, self.objectives = backbone, Head(neck), objectives

    def forward(self, batch: Batch) -> HeadOutputs:
        """Encode a batch and run the head."""
        return self.heads(self.backbone(batch.images)[-1], batch.pids)

    def losses(self, outputs: HeadOutputs, batch: Batch) -> dict[str, Tensor]:
        """Return the weighted terms."""
        return {f"loss_{name}": objective(outputs, batch) for name, objective in self.objectives.items()}

    def embed(self, outputs: HeadOutputs) -> Tensor:
        """Return what the head compares images by: (B, D)."""
        return outputs.embedding
