"""What TAG-CLIP's viewpoint decoupling minimizes (Eqs. 9, 10 and 13).

Shapes: B images, C width of a token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agreid_plugin.errors import InputError, require_within
from agreid_plugin.losses import ViewLoss
from agreid_plugin.losses.validation import precise
from agreid_plugin.methods.tag_clip.hrmoe import Routed


class OrthogonalHinge(nn.Module):
    """Takes CLS and view token apart until they are nearly orthogonal: weight * mean of max(|cos| - margin, 0).

    The paper prints min(|cos|, alpha) (Eq. 10). That has no gradient where the two are far from orthogonal, and is
    constant at alpha = 0, where the paper says it is the usual orthogonal loss. The hinge is what the text describes
    and the released code computes. There the margin is 0.001 and the weight 100, which is max(100 |cos| - 0.1, 0): the
    paper's alpha = 0.1 is margin times weight.

    Computed in float32 inside autocast too. An empty batch is a zero that keeps the graph.

    Args:
        weight: lambda_ortho in Eq. 13.
        margin: |cos| that costs nothing.
    """

    def __init__(self, weight: float = 100.0, margin: float = 0.001):
        super().__init__()
        self.weight = require_within("weight", weight, 0, math.inf)
        self.margin = require_within("margin", margin, 0, 1)

    def forward(self, cls: Tensor, view: Tensor) -> Tensor:
        """Return the loss of a batch: (B, C), (B, C) -> (). The gradient reaches both."""
        if cls.dim() != 2 or view.shape != cls.shape:
            raise InputError(f"view={tuple(view.shape)} should have the shape of cls, (B, C): {tuple(cls.shape)}")
        with torch.autocast(cls.device.type, enabled=False):
            cos = F.cosine_similarity(precise(cls), precise(view), dim=1)  # (B,)
            return self.weight * (cos.abs() - self.margin).relu().sum() / max(len(cos), 1)

    def extra_repr(self) -> str:
        """Name the hyper-parameters when printed."""
        return f"weight={self.weight}, margin={self.margin}"


class Decoupling(nn.Module):
    """The two losses of viewpoint decoupling, each the mean over the blocks that have routers.

    Both are on what enters the experts: the view token leaves the tower after the last of these blocks.

    Args:
        view: the loss of the image-level routers (Eq. 9), or None.
        orthogonal: that of CLS and view token (Eq. 10), or None.
    """

    def __init__(self, view: ViewLoss | None, orthogonal: OrthogonalHinge | None):
        super().__init__()
        self.view, self.orthogonal = view, orthogonal

    def forward(self, routed: Sequence[Routed], views: Tensor | None) -> dict[str, Tensor]:
        """Return the terms by name. Images whose view is `UNKNOWN` take no part in the first."""
        terms = {}
        if self.view is not None:
            if views is None:
                raise InputError("views=None, but the view loss needs them: give the batch views, or no view loss")
            terms["loss_view"] = torch.stack([self.view(one.logits, views) for one in routed]).mean()
        if self.orthogonal is not None:
            terms["loss_orthogonal"] = torch.stack([self.orthogonal(one.cls, one.view) for one in routed]).mean()
        return terms
