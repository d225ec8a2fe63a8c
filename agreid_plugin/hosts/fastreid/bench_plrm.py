"""PLRM as we run it against a loop over patches: the same patches, the same angles, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from tabulate import tabulate
from torch import Generator, Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import rotate

from agreid_plugin.data.augment import PLRM
from agreid_plugin.data.augment.base import draw_angles
from agreid_plugin.errors import InputError

SEED = 0


@dataclass(frozen=True)
class Measurement:
    """What the fastest run of one way took, and what came of it."""

    seconds: float
    cpu: float  # seconds, which other processes disturb less
    outputs: Tensor


def bench_plrm(images: int = 64, size: tuple[int, int] = (256, 128), repeats: int = 5) -> Iterator[str]:
    """Measure and yield lines to print, the table last.

    Args:
        images: images in a batch.
        size: rows and columns of an image.
        repeats: how often to run each; the fastest counts.
    """
    for name, value in (("images", images), ("repeats", repeats)):
        if value < 1:
            raise InputError(f"{name}={value} should be 1 or more")
    plrm = PLRM()
    batch = torch.rand(images, 3, *size, generator=Generator().manual_seed(1))
    selected, _ = _draws(plrm, batch)
    told = f"{images} images of {size[0]}x{size[1]}, {torch.get_num_threads()} threads, best of {repeats}"
    yield f"PLRM at its default settings, {told}: {int(selected.sum())} of {selected.numel()} patches change"
    ours, loop = _measure(partial(_ours, plrm, batch), repeats), _measure(partial(_loop, plrm, batch), repeats)
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


def _measure(run: Callable[[], Tensor], repeats: int) -> Measurement:
    times, cpu_times = [], []
    for _ in range(repeats):
        start, cpu_start = time.perf_counter(), time.process_time()
        outputs = run()
        times.append(time.perf_counter() - start)
        cpu_times.append(time.process_time() - cpu_start)
    return Measurement(min(times), min(cpu_times), outputs)


def _table(ours: Measurement, loop: Measurement, images: int) -> str:
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
    align = ("left", *["right"] * (len(head) - 1))
    table = tabulate(rows, head, tablefmt="github", disable_numparse=True, colalign=align)
    return f"{table}\nx: times ours; CPU: which other processes disturb less"
