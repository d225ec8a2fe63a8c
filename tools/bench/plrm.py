"""PLRM as we run it against a loop over patches: the same patches, the same angles, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Generator, Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import rotate

from agreid_plugin.data.augment import PLRM
from agreid_plugin.data.augment.base import draw_angles
from bench.measuring import Timed, require_at_least, table, timed

SEED = 0


def bench_plrm(images: int = 64, size: tuple[int, int] = (256, 128), repeats: int = 5) -> Iterator[str]:
    """Measure and yield lines to print, the table last.

    Args:
        images: images in a batch.
        size: rows and columns of an image.
        repeats: how often to run each; the fastest counts.
    """
    require_at_least(images=(images, 1), repeats=(repeats, 1))
    plrm = PLRM()
    batch = torch.rand(images, 3, *size, generator=Generator().manual_seed(1))
    selected, _ = _draws(plrm, batch)
    told = f"{images} images of {size[0]}x{size[1]}, {torch.get_num_threads()} threads, best of {repeats}"
    yield f"PLRM at its default settings, {told}: {int(selected.sum())} of {selected.numel()} patches change"
    ours, loop = (timed(partial(way, plrm, batch), repeats) for way in (_ours, _loop))
    yield _table(ours, loop, images)
    difference = (ours.outputs - loop.outputs).abs().max()
    yield f"largest difference of a pixel: {difference:.1e}, where pixels go from 0 to 1"


def _ours(plrm: PLRM, images: Tensor) -> Tensor:
    return plrm(images, Generator().manual_seed(SEED))


def _loop(plrm: PLRM, images: Tensor) -> Tensor:
    """Rotate one patch after the other with torchvision, whose bilinear rotation fills with zeros as ours does."""
    selected, angles = _draws(plrm, images)
    mixed, n = images.clone(), plrm.n
    for image, row, column in selected.nonzero().tolist():
        patch = mixed[image, :, row * n : (row + 1) * n, column * n : (column + 1) * n]
        rotated = rotate(patch, angles[image, row, column].item(), InterpolationMode.BILINEAR)
        patch.copy_(plrm.alpha * rotated + (1 - plrm.alpha) * patch)
    return mixed


def _draws(plrm: PLRM, images: Tensor) -> tuple[Tensor, Tensor]:
    """Draw the patches and angles that `_ours` draws."""
    generator = Generator().manual_seed(SEED)
    selected = plrm.select(images, generator)
    return selected, draw_angles(selected.shape, plrm.theta_max, images.device, generator)


def _table(ours: Timed, loop: Timed, images: int) -> str:
    rows = [
        [
            name,
            f"{1000 * entry.seconds:.1f}",
            f"{entry.seconds / ours.seconds:.1f}x",
            f"{1000 * entry.cpu:.1f}",
            f"{entry.cpu / ours.cpu:.1f}x",
            f"{images / entry.seconds:,.0f}",
        ]
        for name, entry in (("ours", ours), ("loop over patches", loop))
    ]
    head = ["", "ms a batch", "", "CPU ms", "", "images/s"]
    return f"{table(rows, head)}\nx: times ours; CPU: which other processes disturb less"
