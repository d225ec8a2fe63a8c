"""YAML as this package reads it: plain data, each complaint one line naming the file."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from agreid_plugin.data.files import read_text, shown
from agreid_plugin.errors import InputError

DEEPEST = 50  # levels of a file
MOST_VALUES = 200_000
"""Values of a file with its aliases spelled out, which a few lines can make endless."""


class PlainLoader(yaml.SafeLoader):
    """Refuses tags that make objects of Python, and what would take hours to read or to spell out."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Refuse what is nested deeper than any file of ours."""
        self._depth += 1
        if self._depth > DEEPEST:
            raise yaml.composer.ComposerError(None, None, "nested too deeply", self.peek_event().start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def compose_document(self) -> yaml.Node | None:
        """Refuse aliases that name what they stand in, or that multiply without end."""
        node = super().compose_document()
        if node is not None and _values(node, {}) > MOST_VALUES:
            raise yaml.composer.ComposerError(
                None, None, f"its aliases stand for more than {MOST_VALUES:,} values", node.start_mark
            )
        return node

    def refuse(self, node: yaml.Node) -> None:
        """Refuse a tag that is none of plain YAML's."""
        tag = node.tag.replace("tag:yaml.org,2002:", "!!")
        runs = " would run code, so it" if tag.startswith("!!python/") else ""
        raise yaml.constructor.ConstructorError(None, None, f"the tag {tag}{runs} is refused", node.start_mark)


PlainLoader.add_constructor(None, PlainLoader.refuse)


class StrictLoader(PlainLoader):
    """Refuses a key that is there twice too, of which the last would win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Make a dict of keys that are there once."""
        seen = set()
        for key in (self.construct_object(key, deep=True) for key, _ in node.value):
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is there twice", node.start_mark)
            seen |= {key} if isinstance(key, Hashable) else set()
        return super().construct_mapping(node, deep)


def _values(node: yaml.Node, known: dict[int, float]) -> float:
    """Count the values that a node stands for, each alias again; one that is part of itself has no end."""
    if id(node) not in known:
        known[id(node)] = float("inf")  # until it is counted: met inside of itself, it is endless
        inside = node.value if isinstance(node, yaml.SequenceNode) else []
        if isinstance(node, yaml.MappingNode):
            inside = [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_values(each, known) for each in inside)
    return known[id(node)]


def read_yaml(path: str | Path) -> Any:
    """Return what a YAML file says.

    Raises:
        InputError: the file is missing or not plain YAML, in which a key stands once.
    """
    text = read_text(Path(path))
    try:
        return yaml.load(text, StrictLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise InputError(f"{path}, line {line}: not valid YAML: {shown(error.problem or str(error))}") from None
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not valid YAML: {shown(' '.join(str(error).split()))}") from None
    except ValueError as error:  # a date that is none, a number with too many digits
        raise InputError(f"{path}: not YAML that can be read: {shown(str(error))}") from None
