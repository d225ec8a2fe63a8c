"""Tells from where a picture was taken, before any token of a view has touched it."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from agreid_plugin.nn.vit import VisionTransformer
from agreid_plugin.types import View


class ViewPredictor(nn.Module):
    """A small classifier on a transformer's patch embeddings.

    It sees the embeddings with their positions and gives them no gradient, so a method learns the same with it or
    without. Later tokens would not do: an image's tokens have mixed with the token of the view it was said to have,
    and tell that view back.

    Args:
        width: width of the patch embeddings.
        hidden: width of its hidden layer.
        classes: how many views are told apart.
    """

    def __init__(self, width: int, hidden: int = 128, classes: int = len(View)):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, hidden)
        self.classifier = nn.Linear(hidden, classes)

    def forward(self, vit: VisionTransformer, images: Tensor) -> Tensor:
        """Return each view's logits, from a ViT's patches: (B, 3, rows, cols) -> (B, classes)."""
        positions = vit.pos_embed[:, -vit.num_patches :]
        return self.classify(vit.patches(images) + positions)

    def classify(self, patches: Tensor) -> Tensor:
        """Return each view's logits, from patch embeddings with their positions: (B, N, D) -> (B, classes)."""
        return self.classifier(F.gelu(self.hidden(self.norm(patches.detach()))).amax(dim=1))
