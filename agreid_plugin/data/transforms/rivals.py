"""The augmentations that VIF-AGReID compares PLRM with (Table 4), which prints no settings for either.

Shapes as in `base`.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from agreid_plugin.data.transforms.base import (
    Augmentation,
    as_floating,
    as_patches,
    cast,
    draw,
    draw_angles,
    patch_grid,
    require_side,
)
from agreid_plugin.data.transforms.plrm import rotate
from agreid_plugin.errors import InputError, require_within


class RandomRotation(Augmentation):
    """Rotates whole images about their centers, the size kept and the corners black.

    Args:
        p_img: how likely an image is rotated; by default as likely as PLRM changes one.
        theta_max: largest angle in degrees, to either side; by default PLRM's.
    """

    def __init__(self, p_img: float = 0.5, theta_max: float = 45.0):
        super().__init__()
        self.p_img = require_within("p_img", p_img, 0, 1)
        self.theta_max = require_within("theta_max", theta_max, 0, 180)

    def augment(self, images: Tensor, generator: Generator | None) -> Tensor:
        """Rotate some images of a batch."""
        chosen = draw((len(images),), images.device, generator) < self.p_img  # (B,)
        angles = draw_angles((len(images),), self.theta_max, images.device, generator)
        rotated = images.clone()
        rotated[chosen] = cast(rotate(as_floating(images[chosen]), angles[chosen]), images.dtype)
        return rotated

    def extra_repr(self) -> str:
        """Name the hyper-parameters when printed."""
        return f"p_img={self.p_img}, theta_max={self.theta_max}"


class PatchShuffle(Augmentation):
    """Shuffles the pixels within every patch of an image ("PatchShuffle Regularization", Kang et al., 2017).

    That work shuffles feature maps as well; here it is images alone. The defaults, 2 x 2 pixels and 0.05, are those of
    a public re-implementation, and have not been checked against the experiments of the paper.

    Args:
        p_img: how likely an image is shuffled.
        n: side of a patch in pixels; rows and columns beyond the last whole patch stay as they are.
    """

    def __init__(self, p_img: float = 0.05, n: int = 2):
        super().__init__()
        self.p_img = require_within("p_img", p_img, 0, 1)
        self.n = require_side(n)

    def augment(self, images: Tensor, generator: Generator | None) -> Tensor:
        """Shuffle some images of a batch."""
        rows, columns = patch_grid(images, self.n)
        chosen = draw((len(images),), images.device, generator) < self.p_img  # (B,)
        order = draw((int(chosen.sum()), rows, columns, self.n**2), images.device, generator).argsort(dim=-1)
        shuffled = images.clone()
        shuffled[chosen] = shuffle_pixels(images[chosen], order, self.n)
        return shuffled

    def extra_repr(self) -> str:
        """Name the hyper-parameters when printed."""
        return f"p_img={self.p_img}, n={self.n}"


def shuffle_pixels(images: Tensor, order: Tensor, n: int) -> Tensor:
    """Return a copy of a batch with each patch's pixels in a new order, the channels of a pixel staying together.

    Args:
        images: (B, C, H, W).
        order: (B, R, K, n * n), for each pixel of a patch, row by row, the number of the one that takes its place.
        n: side of a patch in pixels.
    """
    shuffled = images.clone()
    patches = as_patches(shuffled, n)  # (B, R, K, C, n, n), a view of `shuffled`
    if order.shape != (*patches.shape[:3], n * n):
        raise InputError(f"order={tuple(order.shape)} should be {(*patches.shape[:3], n * n)}")
    pixels = patches.flatten(-2)  # (B, R, K, C, n * n), a copy
    patches.copy_(torch.take_along_dim(pixels, order.unsqueeze(3), dim=-1).view(patches.shape))
    return shuffled
