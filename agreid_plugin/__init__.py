"""Aerial-ground person re-identification methods for fast-reid and mmengine/mmpretrain.

Importing this package loads no host. It watches for the first import of one: from then on `import fastreid` gives a
host that runs on today's torch and has our components in its registries, in this process and in its workers.
"""

from importlib import import_module

from agreid_plugin import _imports
from agreid_plugin.version import __version__

__all__ = ["Extractor", "__version__"]

_imports.arm()


def __getattr__(name: str) -> object:
    """Import the `Extractor` when it is asked for: with it comes torch."""
    if name == "Extractor":
        return import_module("agreid_plugin.inference.extractor").Extractor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
