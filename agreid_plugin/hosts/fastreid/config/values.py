"""The value of a configuration key, as the kind of thing that its default is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agreid_plugin.errors import InputError


def coerced(value: Any, default: Any, where: str) -> Any:
    """Return a value as the default's type, where nothing is lost by it.

    Args:
        value: what a file or the command line says.
        default: the key's value without them; of a list its entries tell the kind of all.
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
            return type(default)(value if kind is None else [coerced(each, kind, where) for each in value])
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
