"""Progress on disk: every caption is written down at once, so that a run can stop anywhere and go on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agreid_plugin.data.whole_files import whole_file
from agreid_plugin.errors import InputError


@dataclass(frozen=True)
class Caption:
    """One question asked to its end.

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


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that it is there in full or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8", newline="\n")


class Journal:
    """The file of progress beside an output: a line of settings, then a line a caption.

    Args:
        path: the file; if it is there, the run goes on where it ended.
        settings: what decides the captions; a file begun with others is refused.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]):
        self.path = path
        self.done: dict[tuple[str, int], Caption] = {}
        self._settings = dict(settings)
        self._file = None

    def __enter__(self) -> Journal:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        begun = self.path.exists() and self._read()
        self._file = self.path.open("a", encoding="utf-8", newline="\n")
        if not begun:
            self._write({"settings": self._settings})
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if not self.done:
            self.path.unlink()

    def add(self, caption: Caption) -> None:
        """Write down a caption."""
        self._write(asdict(caption))
        self.done[caption.file_path, caption.slot] = caption

    def _write(self, content: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(content, ensure_ascii=False) + "\n")
        self._file.flush()

    def _read(self) -> bool:
        """Read what is there and return whether there was any caption; half a line at the end is cut off."""
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):  # the run was killed while writing
            os.truncate(self.path, len(whole))
        lines = whole.decode("utf-8", "replace").split("\n")[:-1]
        if len(lines) < 2:  # no caption yet, so any settings will do
            os.truncate(self.path, 0)
            return False
        for number, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line)
                self._compare(entry["settings"]) if number == 1 else self._remember(entry)
            except (ValueError, LookupError, TypeError) as error:
                if isinstance(error, InputError):
                    raise
                raise InputError(
                    f"{self.path}: line {number} is damaged; delete the line, or the file to start again"
                ) from error
        return True

    def _remember(self, entry: dict[str, Any]) -> None:
        flags = {name: tuple(found) for name, found in entry.pop("flags").items()}
        caption = Caption(**entry, flags=flags)
        self.done[caption.file_path, caption.slot] = caption

    def _compare(self, before: Mapping[str, Any]) -> None:
        for name in (*self._settings, *before):
            old, new = before.get(name), self._settings.get(name)
            if old != new:
                raise InputError(
                    f"{self.path} was begun with {name} {old!r}, not {new!r}: use the same settings to continue, or "
                    "delete it to start again"
                )
