"""Configuration files of mmengine: reading with overrides, and resolving what depends on other files."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.runner import Runner

from agreid_plugin.data.attributes import schema_to_rows
from agreid_plugin.engine.configuration import literal, pairs
from agreid_plugin.errors import InputError, did_you_mean, error_context, first_line
from agreid_plugin.hosts.mmengine.config.checks import EXTRA_RUNNER_KEYS, check_config
from agreid_plugin.hosts.mmengine.data.attributes import get_schema
from agreid_plugin.hosts.mmengine.models.backbones import spell_activation
from agreid_plugin.nn.clip_weights import needs_quick_gelu

KEYS = (*(name for name in inspect.signature(Runner).parameters if name != "cfg"), *EXTRA_RUNNER_KEYS)
NEAR = 0.85
"""How alike a name at the top of a file and a key must be for a slip of the pen."""


def load_config(path: str | Path, overrides: Iterable[str] = (), keys: Collection[str] = KEYS) -> Config:
    """Read a configuration file with its bases, then the `KEY VALUE ...` overrides, and check it.

    Args:
        path: the file.
        overrides: keys and values by turns.
        keys: keys at the top to check, all by default.

    Raises:
        InputError: a file that is missing or does not run, a misspelt key, an override that fits nowhere, or a value
            of the wrong kind.
    """
    path = Path(path)
    if not os.path.isfile(path):
        siblings = [each.name for each in path.parent.glob("*.py")] if os.path.isdir(path.parent) else []
        raise InputError(f"config file {path} does not exist{did_you_mean(path.name, siblings)}")
    if os.getcwd() not in sys.path:  # for custom_imports; `python -m agreid_plugin` has it first
        sys.path.append(os.getcwd())
    try:
        cfg = Config.fromfile(str(path))
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"config file {path} cannot be read: {_reason(error)}") from None
    _check_keys(cfg, path)
    _override(cfg, list(overrides))
    with error_context(str(path)):
        check_config(cfg, keys)
    return cfg


def require_model(cfg: Config) -> None:
    """Refuse a configuration file without a model."""
    if not cfg.get("model"):
        raise InputError(f"{cfg.filename} has no model: there is nothing to run")


def _reason(error: Exception) -> str:
    if isinstance(error, ImportError) and error.__cause__ is not None:  # mmengine lists its whole search path
        return f"custom_imports: {first_line(error.__cause__)}"
    reason = first_line(error)
    return reason if isinstance(error, SyntaxError | FileNotFoundError) else f"{type(error).__name__}: {reason}"


def _check_keys(cfg: Config, path: Path) -> None:
    """Refuse a name at the top that is a key's but for a letter, as mmengine takes it for a variable of the file.

    Also where the key itself is there: it is the base's, and the recipe has meant to change it.
    """
    for name in cfg:
        near = get_close_matches(name, KEYS, n=1, cutoff=NEAR)
        if name not in KEYS and near:
            raise InputError(f"{path}: key {name} unknown (did you mean {near[0]}?)")


def _override(cfg: Config, overrides: list[str]) -> None:
    for key, text in pairs(overrides, folder="work_dir", weights="load_from"):
        first = key.partition(".")[0]
        if first not in cfg and first not in KEYS:
            raise InputError(f"command line: key {key} unknown{did_you_mean(first, {*cfg, *KEYS})}")
        if first == "custom_imports":
            raise InputError(f"command line: {key} comes too late, the file is read: write custom_imports there")
        try:
            cfg.merge_from_dict({key: literal(text)})
        except Exception as error:
            raise InputError(f"command line: {key} {text} does not fit: {first_line(error)}") from None


def each_dict(value: Any, where: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the path and the entries of every dict in a configuration, outermost first."""
    if isinstance(value, Mapping):
        yield where, value
    entries = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    )
    for name, entry in entries:
        yield from each_dict(entry, f"{where}.{name}" if where else str(name))


def type_name(value: Any) -> str:
    """Return the name in a `type`, which may be a class, without its scope."""
    kind = value.get("type", "") if isinstance(value, Mapping) else value
    return kind.rpartition(".")[2] if isinstance(kind, str) else getattr(kind, "__name__", "")


PRETRAINED = "Pretrained"  # mmengine's initialization from a file


def resolve_model(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's configuration with the activation of CLIP's towers and the attributes of its dataset in it.

    A checkpoint holds neither, and where it is evaluated the pretrained weights and the training set may be missing.
    """
    known = dict(model)
    if isinstance(known.get("backbone"), dict):
        known["backbone"] = resolve_model(known["backbone"])
    if isinstance(known.get("clip"), dict):
        clip = known["clip"]
        needed = needs_quick_gelu(spell_activation(clip.get("quick_gelu", "auto")), clip.get("pretrained"))
        known["clip"] = {**clip, "quick_gelu": "yes" if needed else "no"}
    if isinstance(known.get("attributes"), dict):
        known["attributes"] = schema_to_rows(get_schema(known["attributes"]))
    return known


def without_pretrained(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's configuration, resolved, that loads no pretrained weights: a checkpoint is to fill it."""
    return drop_pretrained(resolve_model(model))


def drop_pretrained(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's configuration without the files that it starts from."""
    known = {name: drop_pretrained(value) if isinstance(value, dict) else value for name, value in config.items()}
    if "pretrained" in known:
        known["pretrained"] = None
    if isinstance(known.get("init_cfg"), dict) and known["init_cfg"].get("type") == PRETRAINED:
        known["init_cfg"] = None
    return known


def to_plain(value: Any) -> Any:
    """Return a configuration's value as JSON can hold it; what is no value is given by its name."""
    if isinstance(value, Mapping):
        return {str(key): to_plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set):
        return [to_plain(entry) for entry in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
