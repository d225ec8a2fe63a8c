"""Configuration keys from signatures: an option of a constructor is a key, its sentence is that of the docstring."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection
from typing import Any, get_args, get_type_hints

from fastreid.config import CfgNode

from agreid_plugin.engine.catalog import SENTENCE_END
from agreid_plugin.hosts.fastreid.config.loading import Key

ARGUMENT = re.compile(r"^ {4}(\w+): (.*)")
"""A line of a docstring's `Args` that begins with an argument."""


def option_names(function: Callable[..., Any], left_out: Collection[str] = ()) -> dict[str, str]:
    """Return argument -> last part of its key, of the arguments with a default that only a configuration gives.

    They are those behind `*`, or all of a constructor that has no `*`.
    """
    parameters = [each for each in inspect.signature(function).parameters.values() if each.default is not each.empty]
    behind = [each for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY]
    return {each.name: each.name.strip("_").upper() for each in behind or parameters if each.name not in left_out}


def keys_from(group: str, function: Callable[..., Any], left_out: Collection[str] = (), label: str = "") -> list[Key]:
    """Return the keys of a constructor's options.

    Args:
        group: the keys' group, as `MODEL.VDT`.
        function: the constructor, or its class.
        left_out: options that are no keys.
        label: what stands before the sentences; the function's name without one.
    """
    parameters, hints = inspect.signature(function).parameters, _hints(function)
    sentences = _sentences(function, label or function.__name__)
    return [
        Key(f"{group}.{key}", _default(parameters[name]), sentences.get(name, ""), _entry(hints.get(name)))
        for name, key in option_names(function, left_out).items()
    ]


def options_from(node: CfgNode, function: Callable[..., Any], left_out: Collection[str] = ()) -> dict[str, Any]:
    """Return argument -> value of a constructor's options from their group of keys."""
    return {name: node[key] for name, key in option_names(function, left_out).items()}


def _default(parameter: inspect.Parameter) -> Any:
    default = parameter.default
    return list(default) if isinstance(default, tuple) else default


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    return get_type_hints(function.__init__ if isinstance(function, type) else function)


def _entry(hint: Any) -> Any:
    """Return a value of the kind that an option takes which is None by default, None for the others."""
    kinds = get_args(hint)
    return next(kind() for kind in kinds if kind in (int, float, str)) if type(None) in kinds else None


def _sentences(function: Callable[..., Any], label: str) -> dict[str, str]:
    """Return argument -> first sentence of what the docstring says of it."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in inspect.cleandoc(function.__doc__ or "").partition("Args:\n")[2].splitlines():
        if line and not line.startswith(" "):
            break
        if match := ARGUMENT.match(line):
            name, found[match[1]] = match[1], [match[2]]
        elif name:
            found[name].append(line.strip())
    first = {name: SENTENCE_END.split(" ".join(lines).strip(), maxsplit=1)[0] for name, lines in found.items()}
    return {name: f"{label}: {sentence.rstrip('.')}." for name, sentence in first.items()}
