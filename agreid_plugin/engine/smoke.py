"""Smoke training: the settings that both hosts share, and the verdict on a training of seconds."""

from __future__ import annotations

import contextlib
import io
import logging
import statistics
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from agreid_plugin.errors import Finding, first_line

SIZE = (32, 16)  # height and width of a picture
IDENTITIES = 4  # to train on; as many to test with
BATCH, PER_PERSON = 8, 4
EPOCHS = 4
VIT = {"patch_size": 8, "width": 32, "depth": 2, "heads": 2}
VISA = {"experts": 2, "tokens": 2, "neighbors": 4}
RATE = 1e-3


@dataclass(frozen=True)
class SmokeResult:
    """The outcome of a short training.

    Attributes:
        losses: of each step.
        changed: weights that the first step changed.
        seconds: that each step took.
    """

    losses: Sequence[float]
    changed: int
    seconds: Sequence[float]


def judge_training(host: str, train: Callable[[Path, Path], SmokeResult], root: Path) -> Finding:
    """Train a tiny ViSA in a host and judge whether it learned.

    Args:
        host: what people call it.
        train: trains and evaluates, given the folder of datasets and that of the run.
        root: a folder; its `data` holds CARGO with `IDENTITIES` to train on and as many to test with.
    """
    try:
        with _silence(), _one_thread():
            trained = train(root / "data", root / host)
    except Exception as error:  # any error is a finding
        return Finding(
            False, f"{host} cannot train a tiny ViSA on AG-Synth: {type(error).__name__}: {first_line(error)}"
        )
    return _judge(host, trained)


def _judge(host: str, trained: SmokeResult) -> Finding:
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
    """Work with one thread: a network this small gains nothing from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Discard what hosts print and log."""
    before, nowhere = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
