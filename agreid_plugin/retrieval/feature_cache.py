"""Feature cache: features of image files in one npz file, so that unchanged files are not read again.

The file holds plain arrays and JSON, nothing that runs code when it is read.

Shapes: N images, D width.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from agreid_plugin.data.atomic_write import atomic_write, write_error_context
from agreid_plugin.data.files import parse_json_bytes, read_arrays, shorten
from agreid_plugin.errors import InputError, first_line
from agreid_plugin.evaluation.validation import as_features
from agreid_plugin.retrieval.index.entries import Entry, VectorChunk
from agreid_plugin.types import UNKNOWN, view_from_label

KIND = "agreid_plugin gallery features"
FileStamp = tuple[str, int, int]
"""The full path of a file, its size, and when it was changed, in nanoseconds."""


class FeatureCache:
    """Features and views of image files, found again while model and file are the same.

    Args:
        path: the file to read, if it exists, and to `save` to; None keeps everything in memory.
        fingerprint: hash of the model; features of another one are dropped.

    Attributes:
        outdated: whether the file held features of another model.

    Raises:
        InputError: the file is something else.
    """

    def __init__(self, path: str | Path | None, fingerprint: str):
        self.path, self.fingerprint = None if path is None else Path(path), fingerprint
        self.outdated = False
        self._stamps: dict[str, FileStamp] = {}
        self._known: dict[FileStamp, tuple[np.ndarray, int]] = {}
        self._changed = False
        if self.path is not None and self.path.exists():
            self._read(self.path)

    def missing(self, paths: Iterable[str]) -> list[str]:
        """Return the files that are not known as they are now."""
        stamps = {path: stamp_file(path) for path in paths}  # before they are read: what changes then is read again
        self._stamps.update(stamps)
        return [path for path, stamp in stamps.items() if stamp not in self._known]

    def put(self, path: str, feature: np.ndarray, view: int) -> None:
        """Keep the feature (D,) of a file that `missing` returned, with its view or `UNKNOWN`."""
        self._known[self._stamps[path]] = feature, view
        self._changed = True

    def chunk(self, paths: Iterable[str]) -> VectorChunk:
        """Return those of the files that are known, in this order."""
        found = [path for path in paths if self._stamps[path] in self._known]
        if not found:
            raise InputError("no image is left to search in")
        features, views = zip(*(self._known[self._stamps[path]] for path in found), strict=True)
        seen = map(view_from_label, views)
        return VectorChunk([Entry(path, view) for path, view in zip(found, seen, strict=True)], np.stack(features))

    def save(self) -> None:
        """Write the file, whole or not at all, if there is something new; files that no longer exist are forgotten."""
        if self.path is None or not self._changed:
            return
        now = {stamp[0]: stamp for stamp in self._stamps.values()}
        kept = [stamp for stamp in self._known if now.get(stamp[0], stamp) == stamp and os.path.exists(stamp[0])]
        about = json.dumps({"kind": KIND, "fingerprint": self.fingerprint, "files": kept})
        arrays: dict[str, Any] = {
            "about": np.frombuffer(about.encode(), dtype=np.uint8),
            "features": np.array([self._known[stamp][0] for stamp in kept], dtype=np.float32),
            "views": np.array([self._known[stamp][1] for stamp in kept], dtype=np.int8),
        }
        with write_error_context(self.path), atomic_write(self.path) as draft, draft.open("wb") as file:
            np.savez(file, **arrays)

    def _read(self, path: Path) -> None:
        try:
            arrays = read_arrays(path, "a cache")
            about = parse_json_bytes(arrays["about"], path)
            features, views = arrays["features"], arrays["views"].tolist()
            features = as_features(features, "gallery").numpy() if len(features) else features
            if about["kind"] != KIND:
                raise ValueError(f"its kind is {about['kind']}")
            stamps = [(str(name), int(size), int(time)) for name, size, time in about["files"]]
            known = dict(zip(stamps, zip(features, map(int, views), strict=True), strict=True))
            self.outdated = about["fingerprint"] != self.fingerprint
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(
                f"{path} is no cache of gallery features ({_reason(error, path)}): choose another name, or remove it"
            ) from None
        self._known = {} if self.outdated else known


def _reason(error: Exception, path: Path) -> str:
    """Return what is wrong with a file, in a few words that do not name it again."""
    if isinstance(error, KeyError):
        return f"it has no {shorten(str(error))}"
    return shorten(first_line(error).removeprefix(f"{path}: "))


def stamp_file(path: str) -> FileStamp:
    """Return the identity of a file as it is now."""
    try:
        status = os.stat(path)
    except OSError:  # a broken link, perhaps; reading it fails with a message
        return os.path.abspath(path), UNKNOWN, UNKNOWN
    return os.path.abspath(path), status.st_size, status.st_mtime_ns
