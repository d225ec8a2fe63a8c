"""Warm-up of the learning rate in runs that are shorter than it, and names of parameters by module."""

from __future__ import annotations


def fit_warmup(warmup: int, iterations: int, left: int = 0) -> int:
    """Return a warm-up that fits into a run: as it is if it leaves enough of the run, else half of the run.

    Half is the first iteration behind the middle: fast-reid's cosine by epochs would fall to its least at once behind
    a warm-up that fills its epochs.

    Args:
        warmup: iterations of warm-up.
        iterations: those of the run.
        left: how many the schedule behind it needs.
    """
    return warmup if warmup <= iterations - left else max(min(iterations // 2 + 1, iterations - 1), 0)


def describe_shortening(warmup: int, fitted: int, iterations: int) -> str:
    """Say that a warm-up was shortened; nothing if it was not."""
    if fitted == warmup:
        return ""
    return f"a warm-up of {warmup} iterations does not fit into the run's {iterations}: shortened to {fitted}"


def is_below(name: str, module: str) -> bool:
    """Return whether a parameter is a module's, or of a module within it, by their names."""
    return name == module or name.startswith(f"{module}.")
