"""What a checkpoint asks Python for, found without loading it, and who may have it.

A pickle is a program: it names classes and functions and calls them. torch's reader of weights knows a few harmless
ones and refuses all others. Whoever trusts a file can have it loaded all the same, see
`agreid_plugin.trust`.
"""

from __future__ import annotations

import logging
import pickletools
import re
import zipfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch

from agreid_plugin.errors import InputError, first_line
from agreid_plugin.trust import ARCHIVE_ERRORS, OPTION, trusted

_logger = logging.getLogger(__name__)

MOST_NAMED = 3  # of what a file asks for
HARMLESS = ("torch.", "collections.", "_codecs.encode", "builtins.set", "builtins.bytearray", "builtins.complex")
"""How names of what files of weights ask for begin."""
MOST_PICKLES = 10  # in a file; the old format has five, one after another
# How torch names what it refuses.
_REFUSED = re.compile(r"GLOBAL (\S+) was")


def load_trusted(path: str | Path, refused: BaseException, **options: Any) -> Any:
    """Load a file that was refused with all that it asks for, if it is trusted.

    Args:
        path: the file.
        refused: what the careful reader said of it.
        **options: for `torch.load`.

    Raises:
        InputError: it is not trusted, or damaged.
    """
    if not trusted():
        raise refusal(path, refused)
    _logger.warning("%s is loaded with the code that it holds, as %s says", path, OPTION)
    try:
        return torch.load(path, weights_only=False, **options)
    except Exception as error:  # what its own code raises
        raise InputError(f"{path} cannot be loaded, trusted as it is: {_told(error)}") from None


def refusal(path: str | Path, refused: BaseException) -> InputError:
    """Say what a file asks for, what that could do, and what to do about it."""
    match = _REFUSED.search(str(refused))
    foreign = sorted(name for name in names_asked_for(path) if not name.startswith(HARMLESS))
    shown = [*foreign[:MOST_NAMED], *(["..."] if len(foreign) > MOST_NAMED else [])]
    names = [match[1]] if match else shown
    if not names:
        return InputError(f"{path} cannot be read as a checkpoint: it is damaged, or holds more than torch writes")
    return InputError(
        f"{path} was not loaded: it holds more than tensors and plain values and asks for {', '.join(names)[:300]}; a "
        "file that asks for such things can run code with all your rights (read, change, delete, send files); if you "
        f"trust whoever made it, add {OPTION}, else have its state dict saved alone"
    )


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def names_asked_for(path: str | Path) -> set[str]:
    """Return the full names of classes and functions that the pickles of a file ask for, as far as they are whole."""
    found: set[str] = set()
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    if name.endswith("/data.pkl"):
                        with archive.open(name) as stream:
                            found.update(_names(stream))
        else:
            with Path(path).open("rb") as stream:
                for _ in range(MOST_PICKLES):
                    found.update(_names(stream))
    except (*ARCHIVE_ERRORS, *_NO_PICKLE):
        pass
    # the second protocol, which torch writes, calls the module of builtins as Python 2 did
    return {name.replace("__builtin__.", "builtins.") for name in found}


_NO_PICKLE = (ValueError, KeyError, IndexError, OverflowError, MemoryError, AttributeError, TypeError)


def _names(stream: IO[bytes]) -> Iterator[str]:
    """Yield the names that one pickle asks for; later protocols put them on the stack, as two texts."""
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
