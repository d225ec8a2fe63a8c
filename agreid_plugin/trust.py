"""Whether files of weights may run code in this process. They may not, unless somebody says so."""

from __future__ import annotations

OPTION = "--trust-checkpoint"
_trusted = False


def trust(files: bool) -> None:
    """Let files of weights run code from here on in this process, or not, which is how it starts."""
    global _trusted
    _trusted = files


def trusted() -> bool:
    """Tell whether files of weights may run code."""
    return _trusted
