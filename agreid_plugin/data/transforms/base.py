"""Base class of tensor augmentations, with patches as views, random draws and checks of arguments.

Shapes: B images of C channels, H rows and W columns; a grid of R x K patches of n x n pixels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Generator, Tensor, nn

from agreid_plugin.errors import InputError


class Augmentation(nn.Module, ABC):
    """Changes images (C, H, W) or batches (B, C, H, W), floating or uint8, each image by its own random draws.

    The result has the shape, dtype and device of the input, which is left as it is. Draws come from `generator` or
    from torch's own, which a data loader seeds per worker. After `.eval()` images pass unchanged.
    """

    def forward(self, images: Tensor, generator: Generator | None = None) -> Tensor:
        """Return augmented copies of `images`."""
        batch = as_batch(images)
        if not self.training:
            return images
        return self.augment(batch, generator).reshape(images.shape)

    @abstractmethod
    def augment(self, images: Tensor, generator: Generator | None) -> Tensor:
        """Augment a batch (B, C, H, W)."""


def as_batch(images: Tensor) -> Tensor:
    """Return an image or a batch as a batch, refusing what is neither."""
    if not isinstance(images, Tensor) or images.dim() not in (3, 4):
        what = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
        raise InputError(f"images={what} should be a tensor of shape (C, H, W) or (B, C, H, W)")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise InputError(f"images are {images.dtype}; they should be floating or uint8")
    return images if images.dim() == 4 else images[None]


def as_patches(images: Tensor, n: int) -> Tensor:
    """View the whole patches of a batch: (B, C, H, W) -> (B, R, K, C, n, n)."""
    rows, columns = patch_grid(images, n)
    whole = images[:, :, : rows * n, : columns * n]
    return whole.unflatten(3, (columns, n)).unflatten(2, (rows, n)).permute(0, 2, 4, 1, 3, 5)


def patch_grid(images: Tensor, n: int) -> tuple[int, int]:
    """Return how many whole patches fit below and beside each other: R, K."""
    height, width = images.shape[-2:]
    if height < n or width < n:
        raise InputError(f"n={n} is larger than the images of {height} x {width}")
    return height // n, width // n


def cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return pixel values as `dtype`, rounded if that is uint8."""
    return values.round().clamp(0, 255).to(dtype) if dtype == torch.uint8 else values.to(dtype)


def draw(shape: tuple[int, ...], device: torch.device, generator: Generator | None) -> Tensor:
    """Draw numbers in [0, 1) on the generator's device, and move them to `device`."""
    source = generator.device if generator is not None else device
    return torch.rand(shape, device=source, generator=generator).to(device)


def draw_angles(
    shape: tuple[int, ...], theta_max: float, device: torch.device, generator: Generator | None = None
) -> Tensor:
    """Draw angles in degrees, evenly from -theta_max to theta_max (Eq. 4)."""
    return (2 * draw(shape, device, generator) - 1) * theta_max


def happens(probability: float, generator: Generator | None = None) -> bool:
    """Draw an event of a probability."""
    return float(torch.rand((), generator=generator)) < probability


def require_side(n: int) -> int:
    """Return the side of a patch, or refuse it."""
    if not isinstance(n, int) or n < 1:
        raise InputError(f"n={n!r} should be a whole number of pixels, 1 or more")
    return n


def as_floating(images: Tensor) -> Tensor:
    """Return pixel values in a precision to compute in: float32, or float64 if they come in it."""
    return images if images.dtype in (torch.float32, torch.float64) else images.float()
