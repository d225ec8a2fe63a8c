"""VIF-AGReID: view-invariant features of a plain ViT (ICCV 2025; no code was released).

What the paper adds to a ViT with BNNeck needs no label of a view, and nothing of it is left at test time:

- Sec. 3.2, Eqs. 1-5: PLRM, an augmentation of training images: `agreid_plugin.data.transforms.plrm`
- Sec. 3.3, Eqs. 6-10: VIAL, a loss on the angles between features: `agreid_plugin.losses.vial`
- Sec. 3.4, Eqs. 11-13: the losses together, here

Shapes: B images, D width, C identities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from agreid_plugin.errors import InputError, require_int
from agreid_plugin.losses import VIAL, identity_objectives
from agreid_plugin.nn.bnneck import BNNeck
from agreid_plugin.types import Batch, HeadOutputs, ReIDMethod


@dataclass(frozen=True)
class VIFOutputs:
    """Outputs of VIF-AGReID for a batch."""

    identity: HeadOutputs


class VIF(ReIDMethod):
    """L = L_id + gamma L_tri + delta L_VIAL (Eq. 13). With delta = 0 it is the ViT baseline.

    Args:
        backbone: any network that turns images into one feature each: ours, or one of another toolbox whose features
            are vectors or maps, which are averaged; of several features the last is taken.
        identities: C, number of identities to train on.
        make_head: makes a head of a width and a number of classes; a `BNNeck` without it.
        objectives: name -> loss of the head: cross-entropy (Eq. 11) and batch-hard triplets with a soft margin (Eq. 12)
            without any. Gamma is the weight of the triplets; the paper prints neither it nor delta.
        width: D; the backbone's attribute `width` without a number.
        vial_weight: delta, factor of L_VIAL (Eq. 13); 0 for the ViT baseline.
        lambda_: strength of VIAL's penalty (Eq. 8).
        beta: decay of the penalty with the cosine (Eq. 8).
        margin: M, how far below 1 the cosine of different people should stay (Eq. 10).
        hard_mining: whether hard negatives take part (Eq. 10) or positives only (Eq. 9).
        gather: pair the images of all processes in VIAL; see there.

    Example:
        >>> import torch
        >>> from agreid_plugin.nn.view_token_vit import PlainEncoder
        >>> from agreid_plugin.nn.vit import VisionTransformer
        >>> vif = VIF(PlainEncoder(VisionTransformer((32, 16), 8, width=16, depth=2, heads=2)), identities=5)
        >>> batch = Batch(images=torch.zeros(4, 3, 32, 16), pids=torch.tensor([0, 0, 1, 1]))
        >>> list(vif.losses(vif(batch), batch))
        ['loss_cls', 'loss_triplet', 'loss_vial']
    """

    def __init__(
        self,
        backbone: nn.Module,
        identities: int,
        make_head: Callable[[int, int], nn.Module] | None = None,
        objectives: nn.ModuleDict | None = None,
        width: int | None = None,
        *,
        vial_weight: float = 1.0,
        lambda_: float = 0.5,
        beta: float = 5.0,
        margin: float = 0.5,
        hard_mining: bool = True,
        gather: bool = True,
    ):
        super().__init__()
        self.backbone, self.width = backbone, _find_width(backbone, width)
        self.head = (make_head or BNNeck)(self.width, identities)
        self.objectives = identity_objectives(over_nonzero=True) if objectives is None else objectives
        self.vial = VIAL(vial_weight, lambda_, beta, margin, hard_mining, gather) if vial_weight else None
        if self.vial is not None and "vial" in self.objectives:
            raise InputError("objectives has vial, which VIF has built in: leave it out, or set vial_weight=0")

    def forward(self, batch: Batch) -> VIFOutputs:
        """Encode a batch and run the head."""
        feature = take_vector(self.backbone(batch.images))
        if feature.shape[1] != self.width:
            raise InputError(f"width={self.width}, but the features of the backbone have {feature.shape[1]}")
        return VIFOutputs(self.head(feature, batch.pids))

    def losses(self, outputs: VIFOutputs, batch: Batch) -> dict[str, Tensor]:
        """Return the weighted terms of Eq. 13."""
        terms = {f"loss_{name}": loss(outputs.identity, batch) for name, loss in self.objectives.items()}
        if self.vial is not None:
            terms["loss_vial"] = self.vial(outputs.identity.features, batch.pids)
        return terms

    def embed(self, outputs: VIFOutputs) -> Tensor:
        """Return what the head compares images by, the feature behind its norm: (B, D)."""
        return outputs.identity.embedding


def take_vector(outputs: Any) -> Tensor:
    """Return one vector an image from what a backbone gives, ours or another's; see `VIF`: -> (B, D)."""
    features = getattr(outputs, "feature", outputs)
    last = features[-1] if isinstance(features, Sequence) else features
    if isinstance(last, Tensor) and last.dim() == 4:
        last = last.mean(dim=(2, 3))
    if not isinstance(last, Tensor) or last.dim() != 2:
        what = tuple(last.shape) if isinstance(last, Tensor) else type(last).__name__
        raise InputError(f"features={what} should be one vector or one map an image")
    return last


def _find_width(backbone: nn.Module, width: int | None) -> int:
    """Return the width of a backbone's features: the given one, or what the backbone says."""
    width = getattr(backbone, "width", None) if width is None else width
    if width is None:
        raise InputError(f"width=None, but {type(backbone).__name__} does not say how wide its features are")
    return require_int("width", width)
