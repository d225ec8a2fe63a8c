"""Readers of text, JSON, CSV, YAML and npz files, and of folders of images, with one-line errors that name the file."""

from __future__ import annotations

import csv
import io
import json
import os
import posixpath
import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from agreid_plugin.data.atomic_write import io_error_context
from agreid_plugin.errors import InputError, did_you_mean, first_line, input_error_like, printable
from agreid_plugin.trust import refuse_bomb

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp")
MAX_LABEL = 2**63 - 1  # what an identity or a camera can be: 64 bits hold it
MAX_SHOWN = 200  # characters of a name from a file that an error message repeats
MAX_NAMED = 3  # names spelled out in a line about many
MAX_DEPTH = 50  # levels of a file
MAX_VALUES = 200_000
"""Values of a file with its aliases spelled out, which a few lines can make endless."""


def require_existing(path: str | Path) -> Path:
    """Return the path if it exists; otherwise the error names the missing part and a similar name beside it."""
    path = Path(path).expanduser()
    if os.path.exists(path):
        return path
    missing = next(p for p in (*reversed(path.parents), path) if not os.path.exists(p))
    neighbors = os.listdir(missing.parent) if missing.parent.is_dir() else []
    near = did_you_mean(missing.name, neighbors)
    raise InputError(f"{path} does not exist: no {missing.name!r} in {missing.parent.absolute()}{near}")


def shorten(text: str) -> str:
    """Return a name from a file as an error message can repeat it: in one line of limited length."""
    text = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
    return printable(text)


def name_few(names: Iterable[object]) -> str:
    """Return the first few names, for a line about all of them."""
    names = list(names)
    return ", ".join(map(str, names[:MAX_NAMED])) + (", ..." if len(names) > MAX_NAMED else "")


def is_list_of_texts(value: object) -> bool:
    """Return whether a value from a file is a list of texts."""
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def list_images(folder: Path) -> list[Path]:
    """Return the images below `folder`, sorted; endings in any case, hidden files are none.

    Links to folders are followed. A folder that several lead to is read once, so that links in a circle come to an end.
    """
    found: list[Path] = []
    seen: set[str] = set()
    folders: list[str] = [os.fspath(folder)]
    links: list[str] = []
    while folders or links:
        where = folders.pop() if folders else links.pop()
        place = os.path.realpath(where)
        if place in seen or not os.path.isdir(where):
            continue
        seen.add(place)
        for entry in _scan(where):
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            elif entry.is_symlink() and os.path.isdir(entry.path):
                links.append(entry.path)
            elif _is_image(entry):
                found.append(Path(entry.path))
        links.sort(reverse=True)
    return sorted(found, key=Path.as_posix)


def _scan(folder: str) -> list[os.DirEntry[str]]:
    with io_error_context(folder, "read"), os.scandir(folder) as entries:
        return list(entries)


def _is_image(entry: os.DirEntry[str]) -> bool:
    # A link to nowhere counts, so that opening the image fails; a pipe or a device does not.
    is_file = entry.is_symlink() or entry.is_file()
    return is_file and entry.name.lower().endswith(IMAGE_ENDINGS) and not entry.name.startswith(".")


def leads_outside(name: str) -> bool:
    """Return whether a path from a file, in the syntax of any system, leads out of the folder it starts from."""
    plain = posixpath.normpath(name.replace("\\", "/"))
    return plain.split("/")[0] in ("", "..") or re.match(r"[A-Za-z]:(/|$)", plain) is not None


def refuse_outside(where: object, names: Iterable[str], advice: str = "name images by their path inside it") -> None:
    """Refuse an image's path that leads out of the dataset's folder; links inside the folder may."""
    for name in names:
        if leads_outside(name):
            raise InputError(f"{where}: {shorten(name)} leads out of the dataset's folder; {advice}")


def read_text(path: Path) -> str:
    """Return a text file's content, a byte order mark removed."""
    path = require_existing(path)
    if not path.is_file():
        raise InputError(f"{path}: not a file")
    try:
        with io_error_context(path, "read"):
            return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start})") from error


def read_lines(path: Path) -> list[str]:
    """Return the paths a list file names, one a line, blank lines left out, separators made forward slashes."""
    lines = [line.strip().replace("\\", "/").removeprefix("./") for line in read_text(path).split("\n")]
    return [line for line in lines if line]


def read_json(path: Path, kind: type) -> Any:
    """Return a JSON file's content, which has to be of type `kind`, a list or a dict."""
    content = parse_json(path, read_text(path))
    if not isinstance(content, kind):
        raise InputError(f"{path}: expected a {kind.__name__}, found a {type(content).__name__}")
    return content


def parse_json(where: object, text: str) -> Any:
    """Parse a JSON text; errors are one line beginning with `where`, and a key twice in one dict is refused."""
    try:
        content = json.loads(text, object_pairs_hook=_with_single_keys)
        if "\\u" in text:  # half a character can be written like this, and nothing could write it down again
            json.dumps(content, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except UnicodeEncodeError:
        raise InputError(f"{where}: a text has half a character, a lone surrogate; write the whole one") from None
    except RecursionError:
        raise InputError(f"{where}: not JSON that can be read: nested too deeply") from None
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except ValueError:
        raise InputError(f"{where}: not JSON that can be read: a number has too many digits") from None
    return content


def _with_single_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise InputError(f"key {shorten(twice)} is there twice; keep one")
    # Names end up in messages and tables, which are lines.
    odd = next((key for key in found if not key.isprintable()), None)
    if odd is not None:
        raise InputError(f"key {shorten(odd)} has characters that cannot be printed")
    return found


def read_entries(path: Path, keys: Collection[str | tuple[str, ...]]) -> list[dict[str, Any]]:
    """Return a JSON list of dicts in which every entry has the `keys`; a tuple of keys asks for one of them."""
    wanted = [key if isinstance(key, tuple) else (key,) for key in keys]
    entries = read_json(path, list)
    for number, entry in enumerate(entries, start=1):
        found = entry.keys() if isinstance(entry, dict) else set()
        if not all(found & set(either) for either in wanted):
            expected = ", ".join(" or ".join(either) for either in wanted)
            raise InputError(f"{path}: entry {number} has {_join_names(found)}; expected {expected}")
    return entries


def read_csv(path: Path, columns: Collection[str], delimiter: str = ",") -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line number, column -> text) for each row of a CSV file that has at least these `columns`.

    Columns without a name, as that of the rows' numbers which pandas writes, are left out.
    """
    if len(delimiter) != 1 or delimiter in '\r\n"':
        raise InputError(f"delimiter {delimiter!r} should be one character that can separate columns, such as ,")
    reader = csv.reader(io.StringIO(read_text(path)), delimiter=delimiter, strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        missing = [name for name in columns if name not in header]
        if missing:
            hint = _hint_delimiter(header, delimiter)
            raise InputError(f"{path}: no column {', '.join(missing)}; found {_join_names(header)}{hint}")
        _check_header(path, header)
        for row in reader:
            if row and len(row) != len(header):
                raise InputError(f"{path}: line {reader.line_num} has {len(row)} values for {len(header)} columns")
            if row:
                yield reader.line_num, {name: text.strip() for name, text in zip(header, row, strict=True) if name}
    except csv.Error as error:
        raise InputError(f"{path}: not CSV: {error} at line {reader.line_num}") from error


def _check_header(path: Path, header: list[str]) -> None:
    for name, times in Counter(header).items():
        if not name.isprintable():
            raise InputError(f"{path}: the name of column {shorten(name)} has characters that cannot be printed")
        if name and times > 1:
            raise InputError(f"{path}: column {shorten(name)} is there twice; keep one")


def _hint_delimiter(header: list[str], delimiter: str) -> str:
    """Return a hint for a table with another delimiter."""
    other = next((each for each in (",", ";", "\t", "|") if len(header) == 1 and each in header[0]), None)
    return "" if other is None else f": {other!r} separates its columns, save it with {delimiter!r}"


def _join_names(names: Collection[str]) -> str:
    return shorten(", ".join(sorted(names))) or "nothing"


class PlainLoader(yaml.SafeLoader):
    """YAML loader that refuses tags for Python objects, deep nesting and aliases that multiply without end."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Refuse a file that is nested too deeply."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, "nested too deeply", self.peek_event().start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def compose_document(self) -> yaml.Node | None:
        """Refuse aliases of a node inside of itself, or that multiply without end."""
        node = super().compose_document()
        if node is not None and _count_values(node, {}) > MAX_VALUES:
            raise yaml.composer.ComposerError(
                None, None, f"its aliases stand for more than {MAX_VALUES:,} values", node.start_mark
            )
        return node

    def refuse(self, node: yaml.Node) -> None:
        """Refuse a tag that plain YAML does not have."""
        tag = node.tag.replace("tag:yaml.org,2002:", "!!")
        runs = " would run code, so it" if tag.startswith("!!python/") else ""
        raise yaml.constructor.ConstructorError(None, None, f"the tag {tag}{runs} is refused", node.start_mark)


PlainLoader.add_constructor(None, PlainLoader.refuse)


class StrictLoader(PlainLoader):
    """YAML loader that also refuses a duplicate key, of which the last would win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Construct a dict, refusing duplicate keys."""
        seen = set()
        for key in (self.construct_object(key, deep=True) for key, _ in node.value):
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is there twice", node.start_mark)
            seen |= {key} if isinstance(key, Hashable) else set()
        return super().construct_mapping(node, deep)


def _count_values(node: yaml.Node, known: dict[int, float]) -> float:
    """Count the values that a node stands for, each alias again; one that is part of itself has no end."""
    if id(node) not in known:
        known[id(node)] = float("inf")  # until it is counted: met inside of itself, it is endless
        inside = node.value if isinstance(node, yaml.SequenceNode) else []
        if isinstance(node, yaml.MappingNode):
            inside = [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_count_values(each, known) for each in inside)
    return known[id(node)]


def read_yaml(path: str | Path) -> Any:
    """Parse a YAML file.

    Raises:
        InputError: the file is missing or not plain YAML, in which a key stands once.
    """
    text = read_text(Path(path))
    try:
        return yaml.load(text, StrictLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        problem = shorten(error.problem or str(error))
        raise input_error_like(error, f"{path}, line {line}: not valid YAML: {problem}") from None
    except yaml.YAMLError as error:
        problem = shorten(" ".join(str(error).split()))
        raise input_error_like(error, f"{path}: not valid YAML: {problem}") from None
    except ValueError as error:  # a date that is none, a number with too many digits
        raise InputError(f"{path}: not YAML that can be read: {shorten(str(error))}") from None


def read_arrays(path: str | Path, what: str) -> dict[str, np.ndarray]:
    """Return the arrays of an npz file by name.

    Args:
        path: the file.
        what: kind of file, for error messages.
    """
    path = require_existing(path)
    if not path.is_file():
        raise InputError(f"{path}: not a file")
    refuse_bomb(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except Exception as error:  # zip, zlib and numpy raise a dozen kinds, depending on where the file is broken
        raise InputError(f"{path}: not {what}: {shorten(first_line(error))}") from error


def parse_json_bytes(array: np.ndarray, where: object) -> Any:
    """Parse the JSON text in an array of bytes."""
    try:
        text = array.tobytes().decode()
    except UnicodeDecodeError:
        raise InputError(f"{where}: not UTF-8 text") from None
    return parse_json(where, text)
