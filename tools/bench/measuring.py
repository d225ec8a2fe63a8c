"""Time and memory of one way to do something, for benchmarks that set several side by side."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from tabulate import tabulate
from torch import Tensor

from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.processes import peak_memory
from agreid_plugin.types import Batch, ReIDMethod

CLIP_MODELS: dict[str, dict[str, int]] = {
    "base": {},
    "small": {"width": 384, "heads": 6, "text_width": 256, "text_heads": 4, "embed_dim": 256},
    "tiny": {
        "width": 64,
        "layers": 2,
        "heads": 4,
        "text_width": 32,
        "text_layers": 2,
        "text_heads": 4,
        "embed_dim": 32,
    },
}
"""Shape of the two towers by name; base is CLIP's ViT-B/16."""
DRAWS = 3
"""Seed of what is drawn at random in training."""

OfSetting = TypeVar("OfSetting", bound="Setting")


@dataclass(frozen=True)
class Setting:
    """What to measure, and how often; the fastest counts."""

    model: str
    batch: int
    size: tuple[int, int]
    repeats: int
    threads: int

    def checked(self: OfSetting) -> OfSetting:
        """Return it, or refuse what cannot be measured: triplets need two images."""
        require_at_least(batch=(self.batch, 2), repeats=(self.repeats, 1))
        return self

    def __str__(self) -> str:
        images = f"{self.batch} images of {self.size[0]}x{self.size[1]}"
        return f"{images}, {self.threads} threads, best of {self.repeats}"


@dataclass(frozen=True)
class VariantSetting(Setting):
    """The same of a method that is read in two ways."""

    variant: str


@dataclass(frozen=True)
class Timed:
    """What the fastest run of one way took, and what came of it."""

    seconds: float
    cpu: float  # seconds, which other processes disturb less
    outputs: Tensor


@dataclass(frozen=True)
class Measurement:
    """What one way took, beyond model and inputs, and what came of it."""

    seconds: float
    cpu: float  # seconds, which other processes disturb less
    peak: float  # megabytes
    outputs: list[float]

    def difference(self, other: Measurement) -> float:
        """Return the largest difference of any output."""
        return max(abs(left - right) for left, right in zip(self.outputs, other.outputs, strict=True))


def timed(run: Callable[[], Tensor], repeats: int) -> Timed:
    """Run something several times; the fastest counts."""
    times, cpu_times = [], []
    for _ in range(repeats):
        start, cpu_start = time.perf_counter(), time.process_time()
        outputs = run()
        times.append(time.perf_counter() - start)
        cpu_times.append(time.process_time() - cpu_start)
    return Timed(min(times), min(cpu_times), outputs)


def measure(run: Callable[[], Tensor], repeats: int) -> Measurement:
    """Time something as `timed` does, and tell by how much the most memory that this process has had grows."""
    before, fastest = peak_memory(), timed(run, repeats)
    peak = peak_memory() - before
    return Measurement(fastest.seconds, fastest.cpu, peak, fastest.outputs.double().flatten().tolist())


def training_step(method: ReIDMethod, batch: Batch) -> Tensor:
    """Run forward, losses and backward, every time with the same draws; gives losses and norms of all gradients."""
    torch.manual_seed(DRAWS)
    method.zero_grad()
    terms = list(method.losses(method(batch), batch).values())
    sum(terms).backward()
    gradients = [parameter.grad for parameter in method.parameters() if parameter.grad is not None]
    return torch.stack([*(term.detach() for term in terms), *(gradient.norm() for gradient in gradients)])


def require_at_least(**limits: tuple[int, int]) -> None:
    """Refuse numbers below their least: name=(value, least)."""
    for name, (value, least) in limits.items():
        if value < least:
            raise InputError(f"{name}={value} should be {least} or more")


def table(rows: list[list[str]], head: list[str]) -> str:
    """Return a table of texts, all but the first column to the right."""
    align = ("left", *["right"] * (len(head) - 1))
    return tabulate(rows, head, tablefmt="github", disable_numparse=True, colalign=align)
