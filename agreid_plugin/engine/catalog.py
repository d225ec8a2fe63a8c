"""Catalog of components for `fastreid list`: names, owners, first sentences of docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass

from agreid_plugin import losses
from agreid_plugin.data import transforms
from agreid_plugin.data.datasets import DATASETS
from agreid_plugin.host import HOSTS

SENTENCE_END = re.compile(r"(?<=[^\d\s][.!?])\s+(?=[A-Z`])")  # not that of `Eq. 15`
PARAGRAPH_END = re.compile(r"\w+:$|\d+\. |[-*] |$")  # `Args:`, a list, an empty line


@dataclass(frozen=True)
class Entry:
    """A registered component: name, owning package, first sentence of its docstring."""

    name: str
    owner: str
    doc: str


def get_owner(entry: object) -> str:
    """Return the package that an object comes from: the top of its module's name."""
    package = (getattr(entry, "__module__", None) or type(entry).__module__).partition(".")[0]
    return HOSTS.get(package, package)


def first_sentence(entry: object) -> str:
    """Return the first sentence of an object's own docstring, nothing if it has none."""
    if not getattr(entry, "__doc__", None):
        return ""
    lines: list[str] = []
    for line in (inspect.getdoc(entry) or "").strip().splitlines():
        if PARAGRAPH_END.match(line.strip()):
            break
        lines.append(line.strip())
    return SENTENCE_END.split(" ".join(lines), maxsplit=1)[0]


def list_entries(named: Mapping[str, object]) -> list[Entry]:
    """Return the entries of objects by name, sorted."""
    found = [Entry(name, get_owner(entry), first_sentence(entry)) for name, entry in named.items()]
    return sorted(found, key=lambda entry: entry.name.lower())


def list_host_free() -> dict[str, list[Entry]]:
    """Return kind -> components of this package that need no host."""
    return {
        "losses": list_entries(_classes(losses)),
        "transforms": list_entries(_classes(transforms)),
        "datasets": list_entries(DATASETS),
    }


def _classes(module: object) -> dict[str, type]:
    named = {name: getattr(module, name) for name in module.__all__}
    return {name: value for name, value in named.items() if inspect.isclass(value)}
