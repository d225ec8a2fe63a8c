"""Unread names at the top of a configuration, which mmengine takes for variables of the file."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.mmengine.config.loading import KEYS, each_dict

READ_ELSEWHERE = {"tta_model": "tools/test.py --tta", "tta_pipeline": "tools/test.py --tta"}
"""Names that a tool of mmpretrain's reads -> the tool."""


class RecordingConfig(Config):
    """Configuration that records which of its names are read, by hooks for example."""

    def __getattr__(self, name: str) -> Any:
        self.reads.add(name)
        return super().__getattr__(name)

    def __getitem__(self, name: str) -> Any:
        self.reads.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a name, or the default."""
        self.reads.add(name)
        return self._cfg_dict.get(name, default)


def record_reads(cfg: Config) -> RecordingConfig:
    """Return the same configuration, recording what is read of it from here on."""
    recording = RecordingConfig.__new__(RecordingConfig)
    recording.__dict__.update(cfg.__dict__, reads=set())
    return recording


class UnreadNames(Hook):
    """Refuses names without an effect when all is built.

    These are of the command line, or of a file that sets a base's variable anew: the base has read its own before. Any
    other name may be a note, or left of a file that a run has written down, and is warned of.

    Args:
        file: the configuration file.
        overrides: `KEY VALUE ...` on top of it.
    """

    priority = "LOWEST"

    def __init__(self, file: str, overrides: Sequence[str]):
        self._file, self._overrides = file, overrides

    def before_train(self, runner: Runner) -> None:
        """Refuse what neither the Runner nor a hook has read."""
        read = {*KEYS, *runner.cfg.reads, *READ_ELSEWHERE}
        for key in self._overrides[::2]:
            if (name := key.partition(".")[0]) not in read:
                raise InputError(
                    f"command line: {key} has no effect, the file has read its variable {name} before: set the "
                    "key that it went into, as train_dataloader.dataset.pipeline"
                )
        unread = [name for name in find_unused_names(Path(self._file)) if name not in read]
        for name in unread:
            if name in (of_bases := _read_bases(self._file)):
                raise InputError(
                    f"{self._file}: {name} has no effect, the base has read its own {name} before: set the key that it "
                    f"went into{_find_place(of_bases[name], of_bases)} as well, or remove {name}"
                )
        if unread:
            runner.logger.warning("names at the top of %s that no part reads: %s", self._file, ", ".join(unread))


def _read_bases(file: str) -> dict[str, Any]:
    """Return what the bases of a file set."""
    found: dict[str, Any] = {}
    for base in Config._get_base_files(file):
        found |= Config.fromfile(Config._get_cfg_path(base, file)[0]).to_dict()
    return found


def _find_place(value: Any, cfg: dict[str, Any]) -> str:
    """Return where a variable's value is in a key that mmengine reads, as part of a message."""
    places = [
        f"{where}.{name}"
        for where, part in each_dict({key: cfg[key] for key in KEYS if key in cfg})
        for name, entry in part.items()
        if where and entry == value
    ]
    return f", {places[0]}," if places else ""


def find_unused_names(path: Path) -> list[str]:
    """Return the names that a Python file sets at its top and uses nowhere, but for those with an underscore."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError:  # mmengine fills in `{{ fileDirname }}` and the like before
        return []
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return [name for name in _assigned(tree.body) if name not in used and not name.startswith("_")]


def _assigned(body: Iterable[ast.stmt]) -> list[str]:
    targets = [
        target
        for node in body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    return [target.id for target in targets if isinstance(target, ast.Name)]
