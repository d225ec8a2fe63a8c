"""Host fixes of mmengine and mmpretrain; each is due with the module that it changes."""

from __future__ import annotations

from collections.abc import Callable

from agreid_plugin import _imports
from agreid_plugin.hosts import torchvision_fixes
from agreid_plugin.hosts.host_fixes import HostFixes
from agreid_plugin.hosts.mmengine.compat import mmengine_fixes, mmpretrain_fixes

HOST_FIXES = HostFixes(torchvision_fixes.HOST_FIXES, mmengine_fixes.HOST_FIXES, mmpretrain_fixes.HOST_FIXES)


def install() -> None:
    """Arm the import hook, and fix what is loaded of mmengine and mmpretrain."""
    _imports.arm()


def run_import(module: str, execute: Callable[[], None]) -> None:
    """Run the import of a module between its fixes; called by the import hook."""
    HOST_FIXES.run_import(module, execute)
