"""Repairs of a host, applied where their fault is present.

Each names its reason and tests for the fault itself, never for a version: with everything native nothing is patched,
and after a patch its own test finds the fault gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Patch:
    """One repair: when it is due, why, how to see the fault, how to mend it."""

    name: str
    stage: str
    reason: str
    needed: Callable[[], bool]
    apply: Callable[[], None]


class Patches:
    """The repairs of one host.

    Attributes:
        all: every repair, in the order of applying them.
    """

    def __init__(self) -> None:
        self.all: list[Patch] = []
        self._applied: dict[str, str] = {}

    def add(
        self, stage: str, reason: str, needed: Callable[[], bool]
    ) -> Callable[[Callable[[], None]], Callable[[], None]]:
        """Register the decorated function as a repair.

        Args:
            stage: when it is due, `before` the host's first module runs or `after` the host is there, for example.
            reason: one line for `fastreid doctor`.
            needed: tells whether the fault is present.
        """

        def register(function: Callable[[], None]) -> Callable[[], None]:
            self.all.append(Patch(function.__name__, stage, reason, needed, function))
            return function

        return register

    def apply(self, stage: str) -> None:
        """Apply the repairs of a stage whose fault is present."""
        for each in self.all:
            if each.stage == stage and each.needed():
                each.apply()
                self._applied[each.name] = each.reason

    def applied(self) -> dict[str, str]:
        """Return name -> reason of the repairs in force in this process."""
        return dict(self._applied)
