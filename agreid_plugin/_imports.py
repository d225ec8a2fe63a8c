"""Run our code around the first import of a package that needs help to load.

Patching at import time, rather than importing the hosts ourselves, keeps `import agreid_plugin` light for those who
borrow one loss, and reaches spawned workers, which import the host only when they unpickle something of it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Execute = Callable[[], None]


def _run_fastreid(execute: Execute) -> None:
    compat = importlib.import_module("agreid_plugin.hosts.fastreid.compat")
    compat.apply("before")
    execute()
    compat.apply("after")
    importlib.import_module("agreid_plugin.hosts.fastreid.components")


def _run_torchvision(execute: Execute) -> None:
    torchvision_ops = importlib.import_module("agreid_plugin.hosts.torchvision_ops")
    torchvision_ops.import_with_schemas(execute)


def _mended_by(compat: str, name: str) -> Callable[[Execute], None]:
    """Return a runner that mends a module as soon as it is there, before others take names from it."""

    def run(execute: Execute) -> None:
        execute()
        importlib.import_module(f"agreid_plugin.hosts.mmengine.compat.{compat}").PATCHES.apply(name)

    return run


MENDED = {
    "mmengine_fixes": (
        "mmengine.utils.package_utils",
        "mmengine.dist.utils",
        "mmengine.model.wrappers.distributed",
        "mmengine.hooks.checkpoint_hook",
        "mmengine.runner.checkpoint",
        "mmengine.fileio.handlers.yaml_handler",
    ),
    "mmpretrain_fixes": (
        "mmpretrain.utils.dependency",
        "mmpretrain.models.backbones.base_backbone",
        "mmpretrain.evaluation.metrics.retrieval",
        "mmpretrain.models.retrievers.image2image",
    ),
}
"""Modules of the second host and its libraries, by the module of ours that mends them.

Each is mended by itself, as importing all of them would take seconds from whoever needs one registry."""

RUNNERS: dict[str, Callable[[Execute], None]] = {
    "fastreid": _run_fastreid,
    "torchvision": _run_torchvision,
    **{name: _mended_by(compat, name) for compat, names in MENDED.items() for name in names},
}


class _WrappedLoader(Loader):
    """The package's own loader, its `exec_module` handed to a runner."""

    def __init__(self, loader: Loader, runner: Callable[[Execute], None]):
        self._loader, self._runner = loader, runner

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._runner(lambda: self._loader.exec_module(module))


class _Finder(MetaPathFinder):
    def __init__(self) -> None:
        self._searching: set[str] = set()

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        if name not in RUNNERS or name in self._searching:
            return None
        self._searching.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching.discard(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _WrappedLoader(spec.loader, RUNNERS[name])
        return spec


def watch() -> None:
    """Start watching; a package that is loaded already is put right at once."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())
    for name, runner in RUNNERS.items():
        if name in sys.modules:
            runner(lambda: None)
