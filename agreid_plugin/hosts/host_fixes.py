"""Host fixes: named changes to a host's code, made where their fault is present.

Every change of this package to a module of a host or of its libraries is one of these. A fix says which module's import
it belongs to and why it is there, and tests for the fault itself, never for a version: where everything works nothing
is changed, and after a fix its own test finds the fault gone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field

Test = Callable[[], bool]
Apply = Callable[[], None]


@dataclass(eq=False)
class HostFix:
    """One change to a host.

    Attributes:
        name: what reports call it.
        module: the host's module with whose import it is due.
        before: whether it is due before that module runs, and not after.
        reason: the fault, in one line.
        needed: returns whether the fault is present.
        apply: mends it.
        applied: whether it was made in this process.
    """

    name: str
    module: str
    before: bool
    reason: str
    needed: Test
    apply: Apply
    applied: bool = field(default=False, init=False)

    @property
    def due(self) -> bool:
        """Whether its module has been imported in this process."""
        return self.module in sys.modules


class HostFixes:
    """The fixes of one host, or of one topic.

    Attributes:
        all: every fix, in the order of applying them.

    Args:
        topics: fixes to begin with.
    """

    def __init__(self, *topics: HostFixes):
        self.all: list[HostFix] = [fix for topic in topics for fix in topic.all]

    def add(self, module: str, reason: str, needed: Test, *, before: bool = False) -> Callable[[Apply], Apply]:
        """Register the decorated function as a fix; see `HostFix`."""

        def register(function: Apply) -> Apply:
            self.all.append(HostFix(function.__name__, module, before, reason, needed, function))
            return function

        return register

    def apply(self, module: str, *, before: bool = False) -> None:
        """Apply the fixes of a module whose fault is present."""
        for fix in self.all:
            if (fix.module, fix.before) == (module, before) and fix.needed():
                fix.apply()
                fix.applied = True

    def run_import(self, module: str, execute: Callable[[], None]) -> None:
        """Run the import of a module between the fixes that are due before and after it."""
        self.apply(module, before=True)
        execute()
        self.apply(module)

    def applied(self) -> dict[str, str]:
        """Return name -> reason of the fixes made in this process."""
        return {fix.name: fix.reason for fix in self.all if fix.applied}

    def armed(self) -> dict[str, str]:
        """Return name -> reason of the fixes whose modules have not been imported in this process."""
        return {fix.name: fix.reason for fix in self.all if not fix.due}
