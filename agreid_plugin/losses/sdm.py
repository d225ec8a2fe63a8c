"""Similarity distribution matching of IRRA (CVPR 2023), another way to align images and texts than N-ITC and R-ITC.

Shapes: B pairs of an image and a text, features of width D.
"""

from __future__ import annotations

from torch import Tensor

from agreid_plugin.losses.itc import RITC


class SDMLoss(RITC):
    """Has cosines of images and texts distributed as those of one person are: SDM.

    mean KL(softmax of an image's logits || Q + smoothing) + the same of a text's: Q shares 1 among a person's

    R-ITC is half of it with a softer target: there the two directions are averaged, and the smoothing is 0.01.

    Args:
        weight: factor of the whole loss.
        smoothing: what is added to every entry of Q, which would be 0 for other people.
        temperature: what cosines are divided by; IRRA does not learn it.
        gather: pair the images and texts of all processes rather than each process's own; see `VIAL`.
    """

    def __init__(self, weight: float = 1.0, smoothing: float = 1e-8, temperature: float = 0.02, gather: bool = True):
        super().__init__(weight, smoothing, temperature, gather)

    def forward(self, images: Tensor, texts: Tensor, pids: Tensor, scale: Tensor | float | None = None) -> Tensor:
        """Return the loss of a batch of pairs: (B, D), (B, D), (B,) -> (); see `NITC.forward`."""
        return 2 * super().forward(images, texts, pids, scale)
