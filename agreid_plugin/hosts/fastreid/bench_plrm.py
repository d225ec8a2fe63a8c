"""PLRM as we run it against a loop over patches: the same patches, the same angles, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from tabulate import tabulate
from torch import Generator, Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import rotate

from agreid_plugin.data.augment import PLRM
from agreid_plugin.data.augment.base import draw_angles
from agreid_plugin.errors import InputError

SEED = 0


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
    seconds, outputs = {}, {}
    for name, run in (("ours", _ours), ("loop over patches", _loop)):
        seconds[name], outputs[name] = _timed(lambda run=run: run(plrm, batch), repeats)
    yield _table(seconds, images)
    ours, loop = outputs.values()
    yield f"largest difference of a pixel: {(ours - loop).abs().max():.1e}, where pixels go from 0 to 1"


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


def _timed(run: Callable[[], Tensor], repeats: int) -> tuple[float, Tensor]:
    """Return the seconds of the fastest run, and what came of it."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        outputs = run()
        times.append(time.perf_counter() - start)
    return min(times), outputs


def _table(seconds: dict[str, float], images: int) -> str:
    ours = seconds["ours"]
    rows = [
        [name, f"{1000 * value:.1f}", f"{value / ours:.1f}x", f"{images / value:,.0f}"]
        for name, value in seconds.items()
    ]
    head = ["", "ms a batch", "times ours", "images/s"]
    return tabulate(rows, head, tablefmt="github", disable_numparse=True, colalign=("left", "right", "right", "right"))
