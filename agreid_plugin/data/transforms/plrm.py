"""Patch-Level RotateMix (VIF-AGReID, ICCV 2025, Eqs. 1-5), and the augmentations of Table 4 that it is compared with.

Shapes: B images of C channels, H rows and W columns; a grid of R x K patches of n x n pixels; S patches selected.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
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
from agreid_plugin.errors import InputError, require_known, require_within

FILLS = ("zero", "self")


class PLRM(Augmentation):
    """Rotates patches about their centers and mixes them with the image, more often near the image's center.

    It belongs after resizing, cropping and conversion to a tensor, and before random erasing; the paper does not say.

    Args:
        p_img: P_img, how likely an image is changed at all (Eq. 1).
        p_0: P_0, how likely a patch in the image's corner is selected (Eq. 3).
        n: side of a patch in pixels (Eq. 2); rows and columns beyond the last whole patch stay as they are.
        c_weight: C_weight, how much likelier a patch at the image's center is selected (Eq. 3).
        theta_max: largest angle in degrees, to either side (Eq. 4).
        alpha: share of the rotated patch in the mix (Eq. 5); 0 changes nothing.
        fill: what a rotated patch holds where it has no pixels: `zero`, or `self`, the patch as it was.
        literal: take the center of Eq. 3 as printed; see `patch_probabilities`.

    Example:
        >>> plrm = PLRM(p_img=1.0, n=4, theta_max=90.0)
        >>> images = torch.ones(2, 3, 16, 8)
        >>> changed = plrm(images, torch.Generator().manual_seed(0))
        >>> changed.shape, bool((changed < 1).any()), bool((images == 1).all())
        (torch.Size([2, 3, 16, 8]), True, True)
        >>> plrm.eval()(images) is images
        True
    """

    def __init__(
        self,
        p_img: float = 0.5,
        p_0: float = 0.3,
        n: int = 16,
        c_weight: float = 0.8,
        theta_max: float = 45.0,
        alpha: float = 0.5,
        fill: str = "zero",
        literal: bool = False,
    ):
        super().__init__()
        self.p_img = require_within("p_img", p_img, 0, 1)
        self.p_0 = require_within("p_0", p_0, 0, 1)
        self.n = require_side(n)
        self.c_weight = require_within("c_weight", c_weight, 0, math.inf)
        self.theta_max = require_within("theta_max", theta_max, 0, 180)
        self.alpha = require_within("alpha", alpha, 0, 1)
        self.fill = require_known("fill", fill, FILLS)
        self.literal = literal

    def augment(self, images: Tensor, generator: Generator | None) -> Tensor:
        """Draw patches and angles for a batch and mix them in."""
        selected = self.select(images, generator)
        angles = draw_angles(selected.shape, self.theta_max, images.device, generator)
        return rotate_patches(images, angles, selected, self.n, self.alpha, self.fill)

    def select(self, images: Tensor, generator: Generator | None = None) -> Tensor:
        """Draw which patches of a batch change (Eqs. 1 and 3): (B, R, K), true where one does."""
        rows, columns = patch_grid(images, self.n)
        probabilities = self.probabilities(rows, columns).to(images.device)
        changed = draw((len(images), 1, 1), images.device, generator) < self.p_img
        return changed & (draw((len(images), rows, columns), images.device, generator) < probabilities)

    def probabilities(self, rows: int, columns: int) -> Tensor:
        """Return each patch's probability in an image that changes (Eq. 3): (R, K)."""
        return patch_probabilities(rows, columns, self.p_0, self.c_weight, self.literal)

    def extra_repr(self) -> str:
        """Name the hyper-parameters when printed."""
        return (
            f"p_img={self.p_img}, p_0={self.p_0}, n={self.n}, c_weight={self.c_weight}, theta_max={self.theta_max}, "
            f"alpha={self.alpha}, fill={self.fill!r}, literal={self.literal}"
        )


def patch_probabilities(
    rows: int, columns: int, p_0: float = 0.3, c_weight: float = 0.8, literal: bool = False
) -> Tensor:
    """Return how likely each patch is selected (Eq. 3): (R, K), clip(p_0 + c_weight * (1 - d / d_max), 0, 1).

    Distances d go from a patch's center to the image's, and d_max to a corner patch's, so that p_0 is met in the
    corners and the probability grows toward the center as the text says. With `literal` both end where the printed
    equation puts them: patches count from 1 and the center is (H/n, W/n), the last patch, so that the bottom right
    corner is likeliest.

    Example:
        >>> patch_probabilities(3, 3, p_0=0.25, c_weight=0.5)[1:].round(decimals=2)
        tensor([[0.4000, 0.7500, 0.4000],
                [0.2500, 0.4000, 0.2500]])
    """
    i, j = torch.meshgrid(torch.arange(rows) + 1.0, torch.arange(columns) + 1.0, indexing="ij")
    center = (rows, columns) if literal else ((rows + 1) / 2, (columns + 1) / 2)
    furthest = math.hypot(rows, columns) if literal else math.hypot(rows - 1, columns - 1) / 2
    distances = torch.hypot(i - center[0], j - center[1])
    return (p_0 + c_weight * (1 - distances / (furthest or 1))).clamp(0, 1)  # a lone patch is the center


def rotate_patches(
    images: Tensor, angles: Tensor, selected: Tensor, n: int = 16, alpha: float = 0.5, fill: str = "zero"
) -> Tensor:
    """Return a copy of a batch with the selected patches rotated and mixed with themselves (Eq. 5).

    Args:
        images: (B, C, H, W), floating or uint8; uint8 results are rounded.
        angles: (B, R, K) degrees, counter-clockwise; those of patches not selected do not matter.
        selected: (B, R, K), true for patches that change.
        n: side of a patch in pixels.
        alpha: share of the rotated patch in the mix.
        fill: `zero` or `self`.
    """
    _require_grid(images, n, angles=angles, selected=selected)
    mixed = images.clone(memory_format=torch.contiguous_format)
    length = math.gcd(n, images.shape[-1])  # of the longest pieces that divide rows of patches and of images
    pieces, places = mixed.view(-1, length), _places(images, selected, n, length)
    # Whole pieces are copied many times faster than one pixel after another, which indexing by patches would do.
    original = as_floating(pieces.index_select(0, places)).view(-1, images.shape[1], n, n)  # (S, C, n, n)
    rotated = rotate(original, angles[selected], fill)
    pieces.index_copy_(0, places, cast(torch.lerp(original, rotated, alpha), images.dtype).view(-1, length))
    return mixed


def _places(images: Tensor, selected: Tensor, n: int, length: int) -> Tensor:
    """Return where the selected patches are among the pieces of a batch, in the order of their pixels.

    A piece is `length` pixels of a row. Each of the S patches has C * n * n / length of them.
    """
    channels, height, width = images.shape[1:]
    across = width // length  # pieces in a row of an image
    image, row, column = selected.nonzero(as_tuple=True)  # (S,) each
    first = (image * channels * height + row * n) * across + column * (n // length)  # (S,)
    channel, line, piece = (torch.arange(count, device=images.device) for count in (channels, n, n // length))
    further = (channel[:, None, None] * height + line[:, None]) * across + piece  # (C, n, n / length)
    return (first[:, None] + further.flatten()).flatten()


def rotate(images: Tensor, angles: Tensor, fill: str = "zero") -> Tensor:
    """Rotate each image about its center, bilinearly and without changing its size: (S, C, h, w), (S,) degrees.

    Where a pixel comes only partly from inside the image, `fill` makes up the rest.
    """
    require_known("fill", fill, FILLS)
    grid = rotation_grid(angles.to(images.dtype), *images.shape[-2:])
    rotated = F.grid_sample(images, grid, align_corners=False)
    if fill == "zero":
        return rotated
    covered = F.grid_sample(torch.ones_like(images[:, :1]), grid, align_corners=False)
    return rotated + (1 - covered) * images


def rotation_grid(angles: Tensor, height: int, width: int) -> Tensor:
    """Return where each pixel of an image turned counter-clockwise comes from: (S,) degrees -> (S, h, w, 2).

    Positions are (x, y) as `grid_sample` takes them with `align_corners=False`: from -1 to 1 between the outer edges.
    """
    y = torch.arange(height, dtype=angles.dtype, device=angles.device) - (height - 1) / 2  # (h,)
    x = torch.arange(width, dtype=angles.dtype, device=angles.device) - (width - 1) / 2  # (w,)
    y, x = torch.meshgrid(y, x, indexing="ij")  # (h, w) each
    upright = torch.stack([x * 2 / width, y * 2 / height], dim=-1)  # (h, w, 2), where pixels come from at 0 degrees
    quarter = torch.stack([-y * 2 / width, x * 2 / height], dim=-1)  # and at 90
    radians = torch.deg2rad(angles)[:, None]  # (S, 1)
    grid = torch.addcmul(radians.cos() * upright.flatten(), radians.sin(), quarter.flatten())  # (S, h * w * 2)
    return grid.view(-1, height, width, 2)


def _require_grid(images: Tensor, n: int, **given: Tensor) -> None:
    patches = (len(images), *patch_grid(images, n))
    for name, values in given.items():
        if values.shape != patches:
            raise InputError(f"{name}={tuple(values.shape)} should have one value a patch: {patches}")


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

    That work shuffles feature maps as well; here it is images only. The defaults, 2 x 2 pixels and 0.05, are those of
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
