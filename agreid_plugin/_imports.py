"""Import hook: host fixes run around the first import of a host's modules.

Fixing a host while it is imported, rather than importing it first, keeps `import agreid_plugin` light where only a loss
is used, and reaches spawned workers, which import the host only when they unpickle one of its objects.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Execute = Callable[[], None]

FASTREID = "agreid_plugin.hosts.fastreid.compat"
MMENGINE = "agreid_plugin.hosts.mmengine.compat"
WATCHED: dict[str, str] = {
    "torchvision": "agreid_plugin.hosts.torchvision_fixes",
    "fastreid": FASTREID,
    "mmengine.utils.package_utils": MMENGINE,
    "mmengine.dist.utils": MMENGINE,
    "mmengine.model.wrappers.distributed": MMENGINE,
    "mmengine.hooks.checkpoint_hook": MMENGINE,
    "mmengine.runner.checkpoint": MMENGINE,
    "mmengine.runner.runner": MMENGINE,
    "mmengine.fileio.handlers.yaml_handler": MMENGINE,
    "mmpretrain.utils.dependency": MMENGINE,
    "mmpretrain.models.backbones.base_backbone": MMENGINE,
    "mmpretrain.evaluation.metrics.retrieval": MMENGINE,
    "mmpretrain.models.retrievers.image2image": MMENGINE,
    "mmpretrain.apis.model": "agreid_plugin.hosts.mmengine.model_index",
}
"""Watched module -> our module whose `run_import` is given its name and what executes it.

fast-reid is fixed as a whole; mmengine and mmpretrain module by module, as importing all of them takes seconds."""


def _run_import(name: str, execute: Execute) -> None:
    importlib.import_module(WATCHED[name]).run_import(name, execute)


class _FixingLoader(Loader):
    """A module's original loader, its `exec_module` run between host fixes."""

    def __init__(self, loader: Loader, run: Callable[[Execute], None]):
        self._loader, self._run = loader, run

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._run(lambda: self._loader.exec_module(module))


class _Finder(MetaPathFinder):
    def __init__(self) -> None:
        self._searching: set[str] = set()

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        if name not in WATCHED or name in self._searching:
            return None
        self._searching.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching.discard(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _FixingLoader(spec.loader, partial(_run_import, name))
        return spec


def arm() -> None:
    """Start watching imports, and fix watched modules that are loaded already; once in a process."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())
    for name in WATCHED:
        if name in sys.modules:
            _run_import(name, lambda: None)
