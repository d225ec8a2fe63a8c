"""CPU time that a picture of AG-Synth takes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial

import numpy as np

from agreid_plugin.synth import make_agsynth
from bench.rivals import alternate, time_call

SIZES = ((128, 64), (256, 128))
IMAGES_A_PERSON = 12


def bench_agsynth(people: int, rounds: int) -> Iterator[str]:
    """Measure and yield lines to print."""
    count = people * IMAGES_A_PERSON
    yield f"{count} pictures, one process, {rounds} rounds in turn; CPU time, median and quartiles"
    makers = {f"{size[0]}x{size[1]}": partial(time_call, partial(_make, people, size)) for size in SIZES}
    for name, seconds in alternate(makers, rounds).items():
        low, median, high = 1000 * np.quantile(seconds, [0.25, 0.5, 0.75]) / count
        yield f"{name}: {median:.1f} ms a picture ({low:.1f}-{high:.1f})"


def _make(people: int, size: tuple[int, int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_agsynth(folder, ids=people, images_per_id=IMAGES_A_PERSON, size=size, workers=1, progress=False)
