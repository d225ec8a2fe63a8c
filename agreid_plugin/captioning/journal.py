"""Progress journal: every caption is written at once, so that a run can stop anywhere and continue."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from agreid_plugin.data.atomic_write import atomic_write, io_error_context, write_error_context
from agreid_plugin.data.files import is_list_of_texts, parse_json, shorten
from agreid_plugin.errors import InputError


@dataclass(frozen=True)
class Caption:
    """Answer to one question.

    Attributes:
        file_path: the image.
        slot: which of its captions.
        kind: the strategy it was asked by.
        asked: digest of the question.
        text: the caption, also of one that cannot be used.
        problem: why it cannot be used, empty if it can.
        flags: kind of remark -> what was found.
        retried: the first answer could not be used.
    """

    file_path: str
    slot: int
    kind: str
    asked: str
    text: str
    problem: str = ""
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    retried: bool = False


_FIELD_TYPES = {
    **dict.fromkeys(("file_path", "kind", "asked", "text", "problem"), str),
    "slot": int,
    "flags": dict,
    "retried": bool,
}


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, with its folder."""
    with write_error_context(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as draft:
            draft.write_text(text, encoding="utf-8", newline="\n")


class Journal:
    """The file of progress beside an output: a line of settings, then a line a caption.

    Args:
        path: the file; if it is there, the run goes on where it ended.
        settings: settings that decide the captions; a file begun with others is refused.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]):
        self.path = path
        self.done: dict[tuple[str, int], Caption] = {}
        self._settings = dict(settings)

    def __enter__(self) -> Journal:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        begun = self.path.exists() and self._read()
        self._file: TextIO = self.path.open("a", encoding="utf-8", newline="\n")
        if not begun:
            self._write({"settings": self._settings})
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if not self.done:
            self.path.unlink()

    def add(self, caption: Caption) -> None:
        """Append a caption."""
        self._write(asdict(caption))
        self.done[caption.file_path, caption.slot] = caption

    def _write(self, content: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(content, ensure_ascii=False) + "\n")
        self._file.flush()

    def _read(self) -> bool:
        """Read the file and return whether it has any caption; half a line at the end is cut off."""
        content = self._content()
        complete = content[: content.rfind(b"\n") + 1]
        lines = complete.split(b"\n")[:-1]
        if len(lines) < 2:  # no caption yet, so any settings will do
            os.truncate(self.path, 0)
            return False
        for number, line in enumerate(lines, start=1):
            if number == 1:
                self._compare(self._settings_in(line))
            else:
                self._remember(number, line)
        if len(complete) < len(content):  # the run was killed while writing
            os.truncate(self.path, len(complete))
        return True

    def _content(self) -> bytes:
        if not self.path.is_file():
            raise InputError(f"{self.path}: not a file; move it away to start again")
        with io_error_context(self.path, "read"):
            return self.path.read_bytes()

    def _settings_in(self, line: bytes) -> dict[str, Any]:
        entry = self._entry(1, line)
        if not isinstance(entry.get("settings"), dict):
            raise self._damage_error(1)
        return entry["settings"]

    def _entry(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            entry = parse_json(self.path, line.decode())
        except (InputError, UnicodeDecodeError):
            raise self._damage_error(number) from None
        if not isinstance(entry, dict):
            raise self._damage_error(number)
        return entry

    def _damage_error(self, number: int) -> InputError:
        return InputError(f"{self.path}: line {number} is damaged; delete the line, or the file to start again")

    def _remember(self, number: int, line: bytes) -> None:
        entry = self._entry(number, line)
        if {name: type(value) for name, value in entry.items()} != _FIELD_TYPES:
            raise self._damage_error(number)
        if not all(is_list_of_texts(found) for found in entry["flags"].values()):
            raise self._damage_error(number)
        flags = {name: tuple(found) for name, found in entry["flags"].items()}
        caption = Caption(**{**entry, "flags": flags})
        self.done[caption.file_path, caption.slot] = caption

    def _compare(self, before: Mapping[str, Any]) -> None:
        for name in (*self._settings, *before):
            old, new = before.get(name), self._settings.get(name)
            if old != new:
                raise InputError(
                    f"{self.path} was begun with {name} {shorten(repr(old))}, not {new!r}: use the same settings to "
                    "continue, or delete it to start again"
                )
