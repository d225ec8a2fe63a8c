"""BNNeck: batch norm and linear classifier, the usual head of re-identification."""

from __future__ import annotations

from torch import Tensor, nn

from agreid_plugin.types import HeadOutputs


class BNNeck(nn.Module):
    """Batch norm without a shift, then a linear classifier.

    Distances are learned on the feature before the norm, classes on the one after it, which also compares images.

    Args:
        width: width of the feature.
        classes: number of classes.

    Example:
        >>> import torch
        >>> neck = BNNeck(width=4, classes=10)
        >>> neck(torch.randn(6, 4)).logits.shape
        torch.Size([6, 10])
        >>> neck.eval()(torch.randn(1, 4)).logits is None
        True
    """

    def __init__(self, width: int, classes: int):
        super().__init__()
        self.width, self.classes = width, classes
        self.norm = nn.BatchNorm1d(width)
        self.norm.bias.requires_grad_(False)
        self.classifier = nn.Linear(width, classes, bias=False)
        nn.init.normal_(self.classifier.weight, std=0.01)

    def forward(self, features: Tensor, labels: Tensor | None = None) -> HeadOutputs:  # noqa: ARG002 - other heads do
        """Return the feature, its normalized form and, in training, the classes' logits: (B, D)."""
        embedding = self.norm(features)
        return HeadOutputs(features, embedding, self.classifier(embedding) if self.training else None)
