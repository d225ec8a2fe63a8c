"""Rivals measured side by side: in turn within one run, by CPU time, with the spread of their ratios."""

from __future__ import annotations

import copy
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from tabulate import tabulate
from torch import Tensor, nn

from agreid_plugin.engine.model_rows import count_operations
from agreid_plugin.engine.processes import in_process, peak_memory
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
TRAINING = "training step"
"""The task whose operations are not counted: torch's counter trips over some modules' backward."""
METHOD = "CPU time, all threads; medians over rounds in which each is called once in turn; quartiles in brackets"

Result = TypeVar("Result")
Module = TypeVar("Module", bound=nn.Module)
Ways = dict[str, Callable[[], Any]]
"""Ways to do one thing by name. Each may return a tensor, which is compared with the first way's."""


@dataclass(frozen=True)
class Setting:
    """The model and its images."""

    model: str
    batch: int
    size: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.model}, {self.batch} images of {self.size[0]}x{self.size[1]}"


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3g}x ({self.low:.3g}-{self.high:.3g})"


def alternate(rivals: Mapping[str, Callable[[], Result]], rounds: int) -> dict[str, list[Result]]:
    """Call rivals in turn, A B A B ..., and return what each call returned."""
    found: dict[str, list[Result]] = {name: [] for name in rivals}
    for _ in range(rounds):
        for name, run in rivals.items():
            found[name].append(run())
    return found


def compute_ratios(taken: Sequence[float], reference: Sequence[float]) -> Spread:
    """Return how many times as long as a reference something took, round by round."""
    return Spread(*np.quantile(np.divide(taken, reference), [0.25, 0.5, 0.75]).tolist())


def cpu_time() -> float:
    """Return the CPU seconds of this process, all its threads and its ended children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def time_call(run: Callable[[], object]) -> float:
    """Return the CPU seconds of one call."""
    start = cpu_time()
    run()
    return cpu_time() - start


def compare(
    tasks: Mapping[str, Callable[[Any], Ways]], setting: Any, rounds: int, rival: str, images: int = 0
) -> Iterator[str]:
    """Measure the ways of every task in turn and yield lines to print, a table last.

    Args:
        tasks: makes the ways to do one thing, by the thing's name.
        setting: what the tasks are made for.
        rounds: how often each way is called after a first call that is not counted.
        rival: what the first way is compared with.
        images: counts operations for one of so many images; 0 counts none.
    """
    yield f"{setting}; against {rival}\n{rounds} rounds, {torch.get_num_threads()} threads; {METHOD}"
    rows = []
    for name, make in tasks.items():
        for way, *cells in _measure(make, setting, rounds, 0 if name == TRAINING else images):
            rows.append([name, way, *cells])
            yield f"{name}, {way}: {cells[0]} s"
    head = ["", "", "CPU s", "times the first", "peak MB", "GFLOPs an image", "largest difference"]
    yield table(rows, head, left=2)


def _measure(make: Callable[[Any], Ways], setting: Any, rounds: int, images: int) -> Iterator[list[str]]:
    ways = make(setting)
    outputs = {way: run() for way, run in ways.items()}
    taken = alternate({way: partial(time_call, run) for way, run in ways.items()}, rounds)
    first = next(iter(ways))
    for way, seconds in taken.items():
        peak, operations = in_process(measure_once, make, setting, way, images)
        difference = "" if outputs[way] is None else f"{(outputs[way] - outputs[first]).abs().max():.1e}"
        ratio = "1x" if way == first else str(compute_ratios(seconds, taken[first]))
        cells = [f"{np.median(seconds):.3g}", ratio, f"{peak:.0f}"]
        yield [way, *cells, f"{operations:.4g}" if images else "", difference]


def measure_once(make: Callable[[Any], Ways], setting: Any, way: str, images: int) -> tuple[float, float]:
    """Return the megabytes that a call adds to the most memory of this process, and its GFLOPs for one image."""
    run = make(setting)[way]
    before = peak_memory()
    run()
    peak = peak_memory() - before
    if not images:
        return peak, 0.0
    with count_operations() as counter:
        run()
    return peak, counter.get_total_flops() / images / 1e9


def training_step(method: ReIDMethod, batch: Batch) -> Tensor:
    """Run forward, losses and backward, every time with the same draws; gives losses and norms of all gradients."""
    torch.manual_seed(DRAWS)
    method.zero_grad()
    terms = list(method.losses(method(batch), batch).values())
    sum(terms).backward()
    gradients = [parameter.grad for parameter in method.parameters() if parameter.grad is not None]
    return torch.stack([*(term.detach() for term in terms), *(gradient.norm() for gradient in gradients)])


def share(module: Module) -> Module:
    """Copy a module, which keeps the weights of the first one: two models take the memory of one."""
    return copy.deepcopy(module, {id(parameter): parameter for parameter in module.parameters()})


def table(rows: Sequence[Sequence[str]], head: Sequence[str], left: int = 1) -> str:
    """Return a table of texts, all but the first columns to the right."""
    align = ["left"] * left + ["right"] * (len(head) - left)
    return tabulate(rows, head, tablefmt="github", disable_numparse=True, colalign=align)
