"""PLRM on a whole batch against a loop over patches: the same patches, the same angles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import rotate

from agreid_plugin.data.transforms import PLRM
from agreid_plugin.data.transforms.base import draw_angles
from bench.rivals import Ways, compare

SEED = 0
RIVAL = "a loop of ours over the patches, each rotated by torchvision"


@dataclass(frozen=True)
class Images:
    """A batch of images."""

    count: int
    size: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.count} images of {self.size[0]}x{self.size[1]}"


def bench_plrm(images: Images, rounds: int) -> Iterator[str]:
    """Measure and yield lines to print, the table last."""
    return compare({"a batch": _ways}, images, rounds, RIVAL)


def _ways(images: Images) -> Ways:
    plrm = PLRM()
    batch = torch.rand(images.count, 3, *images.size, generator=Generator().manual_seed(1))
    return {
        "ours": lambda: plrm(batch, Generator().manual_seed(SEED)),
        "loop over patches": lambda: _loop(plrm, batch),
    }


def _loop(plrm: PLRM, images: Tensor) -> Tensor:
    """Rotate one patch after the other with torchvision, whose bilinear rotation fills with zeros as ours does."""
    generator, mixed, n = Generator().manual_seed(SEED), images.clone(), plrm.n
    selected = plrm.select(images, generator)
    angles = draw_angles(selected.shape, plrm.theta_max, images.device, generator)
    for image, row, column in selected.nonzero().tolist():
        patch = mixed[image, :, row * n : (row + 1) * n, column * n : (column + 1) * n]
        rotated = rotate(patch, angles[image, row, column].item(), InterpolationMode.BILINEAR)
        patch.copy_(plrm.alpha * rotated + (1 - plrm.alpha) * patch)
    return mixed
