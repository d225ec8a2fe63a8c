"""Configuration files of fast-reid: our keys, reading with bases and overrides, kinds of values, own modules."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import torch
from fastreid.config import CfgNode, defaults, get_cfg

from agreid_plugin.data.files import read_yaml
from agreid_plugin.engine.configuration import literal, pairs
from agreid_plugin.errors import InputError, MissingInputError, did_you_mean, first_line
from agreid_plugin.host import find_host

IMPORTS = "CUSTOM_IMPORTS"


def resolve_imports(value: Any, folder: Path, where: str) -> list[str]:
    """Return what is to be imported, files with their whole paths, so that it holds wherever a run writes it down.

    Args:
        value: module names, and files that end with `.py`.
        folder: where relative files lie.
        where: what messages call the place that says it.
    """
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) and each for each in value):
        raise InputError(f"{where}: {IMPORTS} takes a list of modules or .py files, as [my_losses.py], got {value!r}")
    return [str((folder / Path(each).expanduser()).resolve()) if each.endswith(".py") else each for each in value]


def import_all(names: Iterable[str]) -> None:
    """Import modules and files, each once in a process.

    Raises:
        InputError: one is not there, does not import, or is a file whose name another module has.
    """
    for name in names:
        if name.endswith(".py"):
            _import_file(Path(name))
        else:
            _import(name, name)


def _import_file(path: Path) -> None:
    if not path.is_file():
        raise InputError(f"{IMPORTS}: {path} does not exist")
    folder = str(path.parent)
    if folder not in sys.path:  # data workers find the module there, too; at the end, where it hides no other
        sys.path.append(folder)
        importlib.invalidate_caches()
    found = _import(path.stem, str(path))
    if Path(getattr(found, "__file__", None) or "").resolve() != path:
        raise InputError(f"{IMPORTS}: {path} has the name of another module, {path.stem}: rename the file")


def _import(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except InputError as error:
        raise InputError(f"{IMPORTS}: {name}: {error}") from None
    except Exception as error:  # whatever a module raises when it runs
        raise InputError(f"{IMPORTS}: {name} does not import: {type(error).__name__}: {first_line(error)}") from error


def coerce_value(value: Any, default: Any, where: str) -> Any:
    """Return a value as the default's type, where nothing is lost by it.

    Args:
        value: what a file or the command line says.
        default: the key's value without them; the entries of a list give the kind of all.
        where: what the message begins with.

    Raises:
        InputError: the value is of another kind.
    """
    if isinstance(default, bool) or isinstance(value, bool) or value is None:
        if type(value) is type(default):
            return value
    elif isinstance(default, float):
        if isinstance(value, int | float):
            return float(value)
        if isinstance(value, str) and isinstance(number := _number(value), float):
            return number
    elif isinstance(default, int):
        if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
            return int(value)
    elif isinstance(default, list | tuple):
        if isinstance(value, list | tuple):
            kind = _kind_of_all(default)
            return type(default)(value if kind is None else [coerce_value(each, kind, where) for each in value])
    elif isinstance(value, type(default)):
        return value
    raise InputError(f"{where} takes {_described(default)}, got {value!r}")


def _kind_of_all(values: Sequence[Any]) -> Any:
    """Return an entry of a list that tells the kind of all, with a point if one number has it; None if none does."""
    kinds = {type(value) for value in values}
    if kinds == {int, float}:
        return next(value for value in values if isinstance(value, float))
    return values[0] if len(kinds) == 1 and kinds <= {int, float, str} else None


def _number(text: str) -> float | None:
    """Read `3e-4`, which YAML takes for text as it has no point."""
    try:
        return float(text)
    except ValueError:
        return None


def _described(default: Any) -> str:
    kinds = {
        bool: "True or False",
        float: "a number",
        int: "a whole number",
        str: "text",
        list: "a list",
        tuple: "a list",
    }
    kind = kinds.get(type(default), type(default).__name__)
    return f"{kind}, for example {default!r}" if not isinstance(default, bool) and default not in ("", [], ()) else kind


BASE_KEY = "_BASE_"
NAMES_A_KEY = re.compile(r"[A-Z_]+\.[A-Z_]")
"""How a message begins that names its key itself."""


@dataclass(frozen=True)
class Key:
    """One configuration key of ours.

    Attributes:
        path: its full name.
        default: its value where a configuration says nothing.
        doc: a sentence for whoever reads it.
        entry: of a list that is empty by default, an entry of whose kind all must be; None: any kind will do. Of a
            value that is None by default, one of the kind that it takes otherwise.
    """

    path: str
    default: Any
    doc: str
    entry: Any = None


KEYS = (
    Key("SEED", 0, "Seed of every random generator; -1 draws one, which the run card keeps."),
    Key(
        IMPORTS,
        [],
        "Modules, or .py files beside the configuration, to import first: losses and other parts of your own.",
        entry="my_losses.py",
    ),
    Key("DATASETS.ROOT", "", "Folder that holds the datasets; empty: $FASTREID_DATASETS, else datasets/."),
    Key("DATASETS.SKIP_BAD_NAMES", False, "Leave out images whose names are not the dataset's, instead of refusing."),
    Key("DATASETS.BAD_IMAGES", "error", "Images that cannot be read: error (stop, name the file) | skip (list them)."),
    Key("DATASETS.OWN.PATTERN", "", "Dataset `folder`: pattern of a file name with groups pid, camera, view."),
    Key("DATASETS.OWN.IDENTITY_FOLDERS", False, "Dataset `folder`: each sub-folder holds the images of one identity."),
    Key("DATASETS.OWN.AERIAL_CAMERAS", [], "Datasets `folder` and `csv`: cameras in the air, if no view is given."),
    Key("INPUT.PIPELINE", [], "Transforms by name in order, `host` for the host's own; empty: the host's own only."),
    Key("SOLVER.AMP.ON_CPU", False, "Run mixed precision on a CPU too, where it is usually many times slower."),
    Key(
        "SOLVER.WARMUP_EPOCHS",
        0,
        "Epochs of warm-up; 0: SOLVER.WARMUP_ITERS. One that does not fit takes half the run.",
    ),
    Key("SOLVER.KEEP_CHECKPOINTS", 3, "The last checkpoints that stay beside the best and the final one; 0: all."),
    Key("SOLVER.CHECKPOINT_ITERS", 0, "Iterations between two checkpoints within an epoch; 0: none there."),
    Key("SOLVER.LOG_PERIOD", 20, "Iterations between two lines of progress in logs, metrics.json and TensorBoard."),
    Key("SOLVER.LEARNING_GUARD", True, "Stop if the first step changes no weight, a loss is NaN or features collapse."),
    Key(
        "TEST.PROTOCOLS",
        [],
        "Protocols to compute for our datasets; empty: all, or the one that a test set's name has.",
        entry="A2G",
    ),
    Key(
        "TEST.BEST_METRIC", "", "What selects model_best, as CARGO/A2G/mAP; empty: the first protocol's mAP and Rank-1."
    ),
    Key("TEST.MEMORY", 512.0, "Megabytes that ranking may use on top of the features."),
    Key("TEST.EXPECTED_RESULTS", [], "Rows [CARGO/A2G, mAP, value, tolerance] that a finished run must reach."),
)

_docs: dict[str, str] = {}
_optional: set[str] = set()  # None by default
_entries: dict[str, Any] = {  # the host's own
    "MODEL.FREEZE_LAYERS": "backbone",
    "DATALOADER.SET_WEIGHT": 1,
    "KD.MODEL_CONFIG": "teacher.yml",
    "KD.MODEL_WEIGHTS": "teacher.pth",
}


def declare(keys: Iterable[Key]) -> None:
    """Add keys to the host's defaults, so that every later `get_cfg()` has them."""
    for key in keys:
        *parents, name = key.path.split(".")
        node = defaults._C
        for parent in parents:
            node = node.setdefault(parent, CfgNode())
        node[name] = key.default
        _docs[key.path] = key.doc
        if key.entry is not None:
            _entries[key.path] = key.entry
        if key.default is None:
            _optional.add(key.path)


declare(KEYS)


def declare_group(path: str) -> None:
    """Add a group of keys to the host's defaults, if it is not there; without `declare` it has no keys."""
    node = defaults._C
    for name in path.split("."):
        node = node.setdefault(name, CfgNode())


def describe_keys() -> dict[str, str]:
    """Return path -> sentence of every key of ours."""
    return dict(_docs)


@contextmanager
def key_error_context(keys: str) -> Iterator[None]:
    """Put the keys in question before a constructor's complaint about its arguments, which have the same names.

    What begins with a key stays as it is.
    """
    try:
        yield
    except InputError as error:
        raise error if NAMES_A_KEY.match(str(error)) else InputError(f"{keys}: {error}") from None


def with_value(cfg: CfgNode, key: str, value: Any) -> CfgNode:
    """Return a copy of a configuration, frozen if it is, with another value of one key."""
    copy = cfg.clone()
    copy.defrost()
    *parents, name = key.split(".")
    reduce(getitem, parents, copy)[name] = value
    if cfg.is_frozen():
        copy.freeze()
    return copy


def use_cpu_without_gpu(cfg: CfgNode) -> None:
    """Set `MODEL.DEVICE` to the CPU where it asks for a GPU and there is none."""
    if cfg.MODEL.DEVICE.startswith("cuda") and not torch.cuda.is_available():
        cfg.MODEL.DEVICE = "cpu"


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> CfgNode:
    """Read a configuration file with its bases, then the `KEY VALUE ...` overrides.

    Raises:
        InputError: a file that is missing or no YAML mapping, an unknown key, or a value of the wrong type.
    """
    if find_host(path) != "fastreid":
        twin = Path(path).with_suffix(".yml")
        instead = f", {twin} for example" if twin.is_file() else ""
        raise InputError(f"{path} is a configuration of mmengine; name one of fast-reid here, a .yml{instead}")
    files = read_with_bases(Path(path))
    given = [(key, literal(text)) for key, text in pairs(list(overrides), "OUTPUT_DIR", "MODEL.WEIGHTS")]
    imports = _imports(files, given)
    import_all(imports)  # first, as they may declare keys
    cfg = get_cfg()
    origins: dict[str, tuple[int, str]] = {}
    settings = [*_flatten(files), *((key, value, len(files), "command line") for key, value in given)]
    for key, value, place, where in settings:
        _set(cfg, key, value, where)
        origins[key] = (place, where)
    cfg.CUSTOM_IMPORTS = imports
    cfg.__dict__["origins"] = origins
    return cfg


def import_first(path: Path) -> list[str]:
    """Import what a configuration file and its bases ask for, and return it."""
    imports = _imports(read_with_bases(path), [])
    import_all(imports)
    return imports


def _imports(files: list[tuple[Path, dict]], given: list[tuple[str, Any]]) -> list[str]:
    """Return what a configuration imports; as with every key, the last place that sets it counts."""
    places = [(content[IMPORTS], path.parent, str(path)) for path, content in files if IMPORTS in content]
    places += [(value, Path(), "command line") for key, value in given if key == IMPORTS]
    return resolve_imports(*places[-1]) if places else []


def read_with_bases(path: Path, children: tuple[Path, ...] = ()) -> list[tuple[Path, dict]]:
    """Return the file's mapping behind those of its bases, each with the file it stands in."""
    content = _read_yaml(path)
    if path.resolve() in children:
        raise InputError(f"{path}: {BASE_KEY} leads back to a file that inherits from it")
    base = content.pop(BASE_KEY, None)
    if base is None:
        return [(path, content)]
    if not isinstance(base, str):
        raise InputError(f"{path}: {BASE_KEY} takes one file name, got {base!r}")
    base_path = path.parent / Path(base).expanduser()
    if not os.path.isfile(base_path):
        raise MissingInputError(f"{path}: {BASE_KEY} {base} does not exist (looked for {base_path})")
    return [*read_with_bases(base_path, (*children, path.resolve())), (path, content)]


def _read_yaml(path: Path) -> dict:
    if not os.path.isfile(path):
        siblings = [p.name for p in path.parent.glob("*.y*ml")] if os.path.isdir(path.parent) else []
        raise MissingInputError(f"config file {path} does not exist{did_you_mean(path.name, siblings)}")
    content = read_yaml(path)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected keys and values, found a {type(content).__name__}")
    return content


def _flatten(files: list[tuple[Path, dict]]) -> Iterator[tuple[str, Any, int, str]]:
    """Yield every key with its value, and the number and the name of the file that has it."""
    known_nodes = set(_node_paths(get_cfg()))

    def walk(content: dict, prefix: str, *file: Any) -> Iterator[tuple[str, Any, int, str]]:
        for name, value in content.items():
            path = f"{prefix}{name}"
            if isinstance(value, dict) and path in known_nodes:
                yield from walk(value, f"{path}.", *file)
            else:
                yield path, value, *file

    for place, (path, content) in enumerate(files):
        yield from walk(content, "", place, str(path))


def _node_paths(node: CfgNode, prefix: str = "") -> Iterator[str]:
    for name, value in node.items():
        if isinstance(value, CfgNode):
            yield f"{prefix}{name}"
            yield from _node_paths(value, f"{prefix}{name}.")


def key_paths(node: CfgNode, prefix: str = "") -> Iterator[str]:
    """Yield the full path of every key."""
    for name, value in node.items():
        if isinstance(value, CfgNode):
            yield from key_paths(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _set(cfg: CfgNode, path: str, value: Any, where: str) -> None:
    *parents, name = path.split(".")
    node = cfg
    for parent in parents:
        node = node.get(parent) if isinstance(node, CfgNode) else None
    if not isinstance(node, CfgNode) or name not in node:
        raise InputError(f"{where}: key {path} unknown{_nearest_key(path, cfg)}")
    if isinstance(node[name], CfgNode):
        raise InputError(f"{where}: {path} is a group of keys ({', '.join(node[name])}), not a value")
    if path in _optional:
        node[name] = None if value is None else coerce_value(value, _entries[path], f"{where}: key {path}")
        return
    default = [_entries[path]] if path in _entries and not node[name] else node[name]
    node[name] = coerce_value(value, default, f"{where}: key {path}")


def _nearest_key(path: str, cfg: CfgNode) -> str:
    keys = list(key_paths(cfg))
    group, name = path.partition(".")[0], path.rpartition(".")[2]
    if same := [key for key in keys if key.startswith(f"{group}.") and key.endswith(f".{name}")]:
        return f" (did you mean {get_close_matches(path, same, n=1, cutoff=0)[0]}?)"
    hint = did_you_mean(path, keys if "." in path else cfg)
    if hint:
        return hint
    # A key in the wrong group: look for one of nearly its name anywhere.
    by_name = {key.rsplit(".", 1)[-1]: key for key in keys}
    near = get_close_matches(name, by_name, n=1)
    return f" (did you mean {by_name[near[0]]}?)" if near else ""
