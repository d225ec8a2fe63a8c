"""Tells from where a picture was taken, before any token of a view has touched it."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from agreid_plugin.nn.vit import VisionTransformer
from agreid_plugin.types import View


class ViewPredictor(nn.Module):
    """A small classifier on a ViT's patch embeddings.

    It sees the embeddings with their positions and gives them no gradient, so a method learns the same with it or
    without. Later tokens would not do: an image's tokens have mixed with the token of the view it was said to have,
    and tell that view back.

    Args:
        width: width of the patch embeddings.
        hidden: width of its hidden layer.
    """

    def __init__(self, width: int, hidden: int = 128):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, hidden)
        self.classifier = nn.Linear(hidden, len(View))

    def forward(self, vit: VisionTransformer, images: Tensor) -> Tensor:
        """Return each view's logits: (B, 3, rows, cols) -> (B, 2)."""
        positions = vit.pos_embed[:, -vit.num_patches :]
        patches = (vit.patches(images) + positions).detach()
        return self.classifier(F.gelu(self.hidden(self.norm(patches))).amax(dim=1))
