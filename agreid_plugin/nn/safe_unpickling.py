"""Safe unpickling of checkpoints: tensors and plain values are read, other objects become inert or are refused.

A pickle is a program: it names classes and functions and calls them. torch's `weights_only` reader knows a few harmless
ones and refuses all others, among them those of the message hub that mmengine keeps in every checkpoint: buffers of its
own, numpy arrays, and methods by `getattr`. Here it finds an inert class in the place of each, so that no code of the
host or of numpy, and none that a file calls so, ever runs, and these objects are removed afterwards. A file that names
other classes is loaded only where the user trusts it, see `agreid_plugin.trust`.
"""

from __future__ import annotations

import logging
import pickle
import pickletools
import re
import zipfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any

import torch
from torch.serialization import add_safe_globals, clear_safe_globals, get_safe_globals

from agreid_plugin.errors import InputError, first_line, input_error_like
from agreid_plugin.trust import ARCHIVE_ERRORS, OPTION, trusted

_logger = logging.getLogger(__name__)

INERT_PACKAGES = ("mmengine", "mmpretrain", "mmcv", "numpy", "agreid_plugin")
"""Packages whose classes and functions become inert; those of others are refused."""
INERT_NAMES = ("builtins.getattr", "_codecs.encode", "builtins.bytes")
"""Further names that objects of these packages are pickled with: methods, and the bytes of an array."""
METADATA = "_metadata"
"""The only attribute that torch gives a dict: the versions of modules, of a state dict."""
MAX_NAMED = 3  # classes, or objects left out, in a message
HARMLESS = ("torch.", "collections.", "_codecs.encode", "builtins.set", "builtins.bytearray", "builtins.complex")
"""Beginnings of the names that any weight file asks for."""
MAX_PICKLES = 10  # in a file; the old format has five in a row
# How torch names what it refuses.
_REFUSED = re.compile(r"GLOBAL (\S+) was")
_NO_PICKLE = (ValueError, KeyError, IndexError, OverflowError, MemoryError, AttributeError, TypeError)


class InertObject:
    """Accepts every argument, state and item, and does nothing with it."""

    def __init__(self, *args: Any, **kwargs: Any):
        """Ignore the arguments."""

    def __setstate__(self, state: Any) -> None:
        """Ignore the state."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Ignore an item."""


def load_plain(path: str | Path, map_location: Any = "cpu") -> Any:
    """Read a checkpoint as `torch.load(weights_only=True)` does, and leave out the objects of `INERT_PACKAGES`.

    A list that holds one of them is left out with it. What is left out is logged.

    Raises:
        pickle.UnpicklingError: it holds objects of other packages, or is itself one of these.
        ValueError: a part of it holds itself.
    """
    try:
        with _allow():
            content = torch.load(path, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError:
        names = sorted(
            name
            for name in list_pickle_globals(path)
            if name.partition(".")[0] in INERT_PACKAGES or name in INERT_NAMES
        )
        if not names:
            raise
        with _allow(*map(make_inert_class, names)):
            content = torch.load(path, map_location=map_location, weights_only=True)
    left_out: list[str] = []
    if not _is_plain(content, "", left_out, {}):
        raise pickle.UnpicklingError("it is neither a tensor nor a plain value")
    if left_out:
        _log_left_out(str(path), tuple(left_out))
    return content


def make_inert_class(name: str) -> type[InertObject]:
    """Return an inert class of this full name, by which torch finds what is allowed."""
    module, _, own = name.rpartition(".")
    return type(own, (InertObject,), {"__module__": module})


@contextmanager
def _allow(*classes: type) -> Iterator[None]:
    """Allow torch's reader these classes only, and restore afterwards what other libraries had allowed."""
    before = get_safe_globals()
    clear_safe_globals()
    add_safe_globals(list(classes))
    try:
        yield
    finally:
        clear_safe_globals()
        add_safe_globals(before)


def _is_plain(value: Any, name: str, left_out: list[str], known: dict[int, bool | None]) -> bool:
    """Return whether a value is plain, and remove what is not from its dicts.

    Args:
        value: any part of a checkpoint.
        name: its keys from the top, joined by dots.
        left_out: names of what was removed are appended to it.
        known: `id` -> the answer for each container, `None` while it is being found: parts may be shared.
    """
    if isinstance(value, InertObject) or (isinstance(value, type) and issubclass(value, InertObject)):
        return False
    if not isinstance(value, dict | list | tuple | set):
        return True
    if id(value) not in known:
        known[id(value)] = None
        if isinstance(value, dict):
            for key in [key for key in getattr(value, "__dict__", ()) if key != METADATA]:
                del value.__dict__[key]  # by which a file could replace a method
            for part in (value, getattr(value, "__dict__", {})):
                _remove_foreign(part, name, left_out, known)
            known[id(value)] = True
        else:
            found = [_is_plain(each, name, left_out, known) for each in value]
            known[id(value)] = all(found)
    kept = known[id(value)]
    if kept is None:
        raise ValueError(f"its part {name or 'all'} holds itself")
    return kept


def _remove_foreign(part: dict, name: str, left_out: list[str], known: dict[int, bool | None]) -> None:
    for key in [*part]:
        inner = _join_key(name, key)
        if not (_is_plain(key, inner, left_out, known) and _is_plain(part[key], inner, left_out, known)):
            del part[key]
            left_out.append(inner)


def _join_key(name: str, key: Any) -> str:
    shown = repr(str(key)[:60])[1:-1]  # in one line
    return f"{name}.{shown}" if name else shown


@cache
def _log_left_out(path: str, names: tuple[str, ...]) -> None:
    """Log what is left out, once a process: to resume, a file is read twice."""
    more = len(names) - MAX_NAMED
    _logger.info(
        "%s: left out what is neither a tensor nor a plain value: %s%s",
        path,
        ", ".join(names[:MAX_NAMED]),
        f" and {more} more" if more > 0 else "",
    )


def load_trusted(path: str | Path, refused: BaseException, **options: Any) -> Any:
    """Load a file that was refused, running its code, if files are trusted.

    Args:
        path: the file.
        refused: the error of the safe reader.
        **options: for `torch.load`.

    Raises:
        InputError: it is not trusted, or damaged.
    """
    if not trusted():
        raise build_refusal(path, refused)
    _logger.warning("%s is loaded with the code that it holds, as %s says", path, OPTION)
    try:
        return torch.load(path, weights_only=False, **options)
    except Exception as error:  # raised by its own code
        raise InputError(f"{path} cannot be loaded, trusted as it is: {_describe_error(error)}") from None


def build_refusal(path: str | Path, refused: BaseException) -> InputError:
    """Build the error that says what a file asks for, what that could do, and what to do about it."""
    match = _REFUSED.search(str(refused))
    foreign = sorted(name for name in list_pickle_globals(path) if not name.startswith(HARMLESS))
    shown = [*foreign[:MAX_NAMED], *(["..."] if len(foreign) > MAX_NAMED else [])]
    names = [match[1]] if match else shown
    if not names:
        message = f"{path} cannot be read as a checkpoint: it is damaged, or holds more than torch writes"
        return input_error_like(refused, message)
    return input_error_like(
        refused,
        f"{path} was not loaded: it holds more than tensors and plain values and asks for {', '.join(names)[:300]}; a "
        "file that asks for such things can run code with all your rights (read, change, delete, send files); if you "
        f"trust whoever made it, add {OPTION}, else have its state dict saved alone",
    )


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def list_pickle_globals(path: str | Path) -> set[str]:
    """Return the full names of classes and functions that the readable pickles of a file ask for."""
    found: set[str] = set()
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    if name.endswith("/data.pkl"):
                        with archive.open(name) as stream:
                            found.update(_scan_globals(stream))
        else:
            with Path(path).open("rb") as stream:
                for _ in range(MAX_PICKLES):
                    found.update(_scan_globals(stream))
    except (*ARCHIVE_ERRORS, *_NO_PICKLE):
        pass
    # the second protocol, which torch writes, calls the module of builtins as Python 2 did
    return {name.replace("__builtin__.", "builtins.") for name in found}


def _scan_globals(stream: IO[bytes]) -> Iterator[str]:
    """Yield the names that one pickle asks for; later protocols put them on the stack as two strings."""
    texts: deque[str] = deque(["?", "?"], maxlen=2)
    memo: dict[Any, str] = {}  # by number
    for code, argument, _ in pickletools.genops(stream):
        if code.name in ("GLOBAL", "INST"):
            yield str(argument).replace(" ", ".")
        elif code.name == "STACK_GLOBAL":
            yield ".".join(texts)
        elif isinstance(argument, str):
            texts.append(argument)
        elif code.name == "MEMOIZE" or code.name.endswith("PUT"):
            memo[len(memo) if argument is None else argument] = texts[-1]
        elif code.name.endswith("GET"):
            texts.append(memo.get(argument, "?"))
