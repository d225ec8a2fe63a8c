"""A training of seconds, to see that a host learns here: what both hosts' have in common."""

from __future__ import annotations

import contextlib
import io
import logging
import statistics
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from agreid_plugin.engine.catalog import Finding
from agreid_plugin.errors import first_line
from agreid_plugin.synth import make_agsynth

SIZE = (32, 16)  # height and width of a picture
PEOPLE = 4  # to train on; as many to test with
BATCH, PER_PERSON = 8, 4
EPOCHS = 4
VIT = {"patch_size": 8, "width": 32, "depth": 2, "heads": 2}
VISA = {"experts": 2, "tokens": 2, "neighbors": 4}
RATE = 1e-3


@dataclass(frozen=True)
class Trained:
    """What a short training came to.

    Attributes:
        losses: of each step.
        changed: weights that the first step changed.
        seconds: that each step took.
    """

    losses: Sequence[float]
    changed: int
    seconds: Sequence[float]


def smoke(trainings: dict[str, Callable[[Path, Path], Trained]]) -> list[Finding]:
    """Train a tiny ViSA on a few pictures of AG-Synth in each host.

    Args:
        trainings: the host's name -> what trains, given the folder of datasets and that of the run.
    """
    if not trainings:
        return []
    with tempfile.TemporaryDirectory(prefix="fastreid-doctor-") as folder:
        root = Path(folder)
        make_agsynth(root / "data", ids=2 * PEOPLE, images_per_id=8, size=SIZE, workers=1, progress=False)
        return [_tried(host, train, root) for host, train in trainings.items()]


def _tried(host: str, train: Callable[[Path, Path], Trained], root: Path) -> Finding:
    try:
        with _silence(), _one_thread():
            trained = train(root / "data", root / host)
    except Exception as error:  # whatever goes wrong is what the doctor is asked for
        return Finding(
            False, f"{host} cannot train a tiny ViSA on AG-Synth: {type(error).__name__}: {first_line(error)}"
        )
    return _judged(host, trained)


def _judged(host: str, trained: Trained) -> Finding:
    few = max(len(trained.losses) // 4, 1)
    first, last = statistics.fmean(trained.losses[:few]), statistics.fmean(trained.losses[-few:])
    speed = BATCH / statistics.median(trained.seconds)
    text = (
        f"{host} trained a tiny ViSA on AG-Synth for {len(trained.losses)} steps: loss {first:.2f} to {last:.2f}, "
        f"{trained.changed} weights changed by the first step, {speed:.0f} images/s"
    )
    return Finding(trained.changed > 0 and last < first, text)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Work with one thread: so small a network is done sooner than it is shared out."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep what hosts print and log to themselves."""
    before, nowhere = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
