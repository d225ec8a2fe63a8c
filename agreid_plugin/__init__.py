"""Aerial-ground person re-identification methods for fast-reid and mmengine/mmpretrain.

Importing this package loads no host. It watches for the first import of one: from then on `import fastreid` gives a
host that runs on today's torch and has our components in its registries, in this process and in its workers.
"""

from agreid_plugin import _imports

__version__ = "0.1.0"

_imports.watch()
