"""Fixes of mmengine and mmpretrain for today's Python and torch; `fastreid doctor` lists what was applied."""

from agreid_plugin.hosts import torchvision_ops
from agreid_plugin.hosts.mmengine.compat import mmengine_fixes, mmpretrain_fixes


def applied() -> dict[str, str]:
    """Return name -> reason of the patches in force in this process."""
    return {**torchvision_ops.applied(), **mmengine_fixes.PATCHES.applied(), **mmpretrain_fixes.PATCHES.applied()}
