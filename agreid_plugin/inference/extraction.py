"""Features of whole galleries: chunk by chunk, for a file or an index, going on where an interruption left off."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from tqdm import tqdm

from agreid_plugin.data.atomic_write import atomic_write, write_error_context
from agreid_plugin.data.bad_images import describe_images
from agreid_plugin.data.files import parse_json_bytes, read_arrays
from agreid_plugin.errors import InputError
from agreid_plugin.inference.evaluation_sets import make_picture
from agreid_plugin.inference.extractor import Extractor, format_frames
from agreid_plugin.retrieval.feature_cache import stamp_file
from agreid_plugin.retrieval.feature_files import check_ending, write_features
from agreid_plugin.retrieval.index.entries import Chunk, Entry, VectorChunk
from agreid_plugin.retrieval.index.folder import WriterLock

CHUNK = 1024  # images that are kept together: what an interruption costs at most
PARTS = ".parts"  # behind a file's name: the folder of what is done of it
Notify = Callable[[str], None]


class Extraction:
    """The images of a gallery on their way to features.

    Args:
        extractor: makes the features.
        entries: the images.
        skip_bad_images: leave out images that cannot be read, instead of refusing them.
    """

    def __init__(self, extractor: Extractor, entries: Sequence[Entry], skip_bad_images: bool = False):
        self.extractor, self._skip = extractor, skip_bad_images
        self._parts = [entries[start : start + CHUNK] for start in range(0, len(entries), CHUNK)]
        self._bad: list[str] = []
        self._frames: list[str] = []
        self._guessed = 0

    def chunks(self) -> Iterator[Chunk]:
        """Give chunks whose features are made when they are asked for, and show how many images are done."""
        images = sum(map(len, self._parts))
        with tqdm(total=images, desc="extracting", unit="image", leave=False, disable=None) as bar:
            for part in self._parts:
                before = bar.n
                yield Chunk(part, partial(self._made, part, bar), self._key(part))
                bar.update(before + len(part) - bar.n)  # a chunk that was there already

    def print_notes(self, say: Notify) -> None:
        """Say what should be known of the images."""
        if self._guessed:
            say(f"the views of {self._guessed} images are what the model takes them for")
        if self._bad:
            say(f"left out: {describe_images(self._bad)}")
        if self._frames:
            say(format_frames(self._frames, sum(map(len, self._parts))))

    def _made(self, part: Sequence[Entry], bar: tqdm) -> Chunk:
        """Return the images of a part that can be read, their views where the model tells them, and the features."""
        entries, features = [], []
        for batch in self.extractor.extract_pictures(map(make_picture, part), self._skip):
            for place, view in zip(batch.kept, batch.views, strict=True):
                entries.append(replace(part[place], view=view))
                self._guessed += part[place].view is None and view is not None
            features += [batch.features] if batch.kept else []
            self._bad += batch.bad
            self._frames += batch.frames
            bar.update(len(batch.kept) + len(batch.bad))
        return Chunk(entries, np.concatenate(features) if features else np.empty((0, 0), np.float32))

    def _key(self, part: Sequence[Entry]) -> str:
        """Return what tells features of these images, as they are now, from others."""
        digest = hashlib.sha256(f"{self.extractor.fingerprint} {self.extractor.normalize}".encode())
        for entry in part:
            digest.update(repr((entry.fields, stamp_file(entry.path))).encode())
        return digest.hexdigest()


def check_output(path: Path, force: bool) -> None:
    """Refuse a file for features before anything is computed, if it could not be written then."""
    check_ending(path)
    if path.is_dir() or (path.exists() and not force):
        raise InputError(f"{path} exists already: choose another name, or replace it with --force")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{path}: its folder does not exist")


def extract(extraction: Extraction, path: Path, say: Notify) -> tuple[int, int]:
    """Write the features of a gallery to a file; return how many images it has, and how wide their features are.

    What is done lies in a folder beside the file until all is: the same call goes on from there.

    Args:
        extraction: the images.
        path: the file, which is replaced; see `check_output`.
        say: called with lines for the user.
    """
    parts = path.with_name(f"{path.name}{PARTS}")
    with write_error_context(parts):
        parts.mkdir(exist_ok=True)
    lock = WriterLock(parts)
    try:
        done = [_kept(parts, chunk) for chunk in extraction.chunks()]
        _remove_others(parts, done, say)
        sizes = _join(partial(_chunks, done), path, extraction.extractor)
        for part in done:
            part.unlink()
    finally:
        lock.release()
        if not any(parts.glob("*.npz")):  # all is done, or nothing
            shutil.rmtree(parts)
    extraction.print_notes(say)
    return sum(count for count, _ in sizes), sizes[0][1]


def _join(chunks: Callable[[], Iterator[VectorChunk]], path: Path, extractor: Extractor) -> list[tuple[int, int]]:
    """Write what is done to one file, whole or not at all, and return how many images of which width each part has."""
    sizes = [chunk.vectors.shape for chunk in chunks()]
    if not sizes:
        raise InputError(f"{path} would be empty: no image could be read")
    about = {"fingerprint": extractor.fingerprint, "normalized": extractor.normalize}
    with write_error_context(path), atomic_write(path) as draft:
        write_features(draft, path.suffix, chunks, about)
    return sizes


def _kept(parts: Path, chunk: Chunk) -> Path:
    """Return the file of a chunk, which is made if it is not there."""
    path = parts / f"{chunk.name}.npz"
    if not path.exists():
        made = chunk.vectors()
        fields = np.frombuffer(json.dumps([entry.fields for entry in made.entries]).encode(), dtype=np.uint8)
        with write_error_context(path), atomic_write(path) as draft, draft.open("wb") as file:
            np.savez(file, features=made.vectors, fields=fields)
    return path


def _chunks(files: Sequence[Path]) -> Iterator[VectorChunk]:
    """Give the chunks that have images."""
    for path in files:
        arrays = read_arrays(path, "a part of features: remove it")
        entries = [Entry.from_fields(values) for values in parse_json_bytes(arrays["fields"], path)]
        if entries:
            yield VectorChunk(entries, arrays["features"])


def _remove_others(parts: Path, kept: Sequence[Path], say: Notify) -> None:
    """Remove what an earlier call made of other images, weights or settings."""
    others = set(parts.glob("*.npz")) - set(kept)
    if others:
        say(f"{parts} had parts of other images, weights or settings: made anew")
    for path in others:
        path.unlink()
