"""faiss backend: an index in a folder of this machine.

The folder has `gallery.sqlite` (what is known of the images, and what the other files should be), `vectors-N.f32` (the
vectors, appended chunk by chunk) and, unless the kind is flat, `structure-N.faiss` with what makes search fast. What
is added lies behind the structure and is searched exactly, until it is worth to take it in. Removed images are
no longer found at once; their vectors stay in the files until `compact`, which happens by itself when there are many.

Any thread may use an opened index. What is in memory of it changes in transactions of the table, of which there is
one at a time; vectors are compared outside of them, so that searches run side by side and no writer waits for one.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from agreid_plugin.data.atomic_write import atomic_write
from agreid_plugin.errors import InputError
from agreid_plugin.retrieval.index import folder as files
from agreid_plugin.retrieval.index.base import GalleryIndex, Info
from agreid_plugin.retrieval.index.entries import ANY, Chunk, Entry, Match, Where
from agreid_plugin.retrieval.index.index_types import Structure, can_train, choose_kind
from agreid_plugin.retrieval.index.metadata import MetadataTable
from agreid_plugin.retrieval.index.searcher import MISSING, Searcher, build_structure

LATE_PART, LATE_LEAST = 0.1, 20_000  # vectors behind the structure: so many, and this part of it, are taken in
GONE_PART, GONE_LEAST = 0.3, 10_000  # vectors of removed images: so many, and this part of all, are left out
MAX_FILTERS = 8  # filters whose rows are kept for the next search
ROWS_CHECKED = 50_000  # images whose checksum is compared whenever the index is opened


class FaissIndex(GalleryIndex):
    """An index in a folder, opened.

    Args:
        folder: the folder.
        write: whether it is going to be changed; one program at a time may.
        building: open it though its build is not finished.

    Raises:
        InputError: there is no index, it is damaged, unfinished, of another version, or being changed.
    """

    _searcher: Searcher

    def __init__(self, folder: str | Path, write: bool = False, building: bool = False):
        self.uri, self._folder, self._write = str(folder), Path(folder), write
        if not (self._folder / files.TABLE).is_file():
            raise InputError(f"{folder} has no gallery index: name a folder that has one, or build it")
        self._lock = files.WriterLock(self._folder) if write else None
        self._changing = threading.RLock()  # for the one thread that changes files and table
        try:
            self._table = MetadataTable(self._folder / files.TABLE)
            self._about = {}
            self._known: dict[str, np.ndarray | None] = {}
            with self._table.transaction():
                self._refresh()
                self._check_small(building)
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, folder: str | Path, width: int, fingerprint: str, kind: str | None) -> FaissIndex:
        """Make an empty index, open to be built; the folder may exist if nothing is in it."""
        path = Path(folder)
        files.make_folder(path)
        lock = files.WriterLock(path)
        try:
            with atomic_write(path / files.TABLE) as draft:
                about = {"vectors": 0, "checksum": 0, "number": 0, "complete": False, "structure": None}
                MetadataTable.create(draft, {"width": width, "fingerprint": fingerprint, "kind": kind, **about})
        finally:
            lock.release()
        return cls(folder, write=True, building=True)

    def build(self, chunks: Iterable[Chunk]) -> None:
        """Take in the chunks that are not in, and finish: an interrupted build goes on where it was."""
        self._require_writing()
        for chunk in chunks:
            if not self._table.has_chunk(chunk.name):
                self._insert_chunk(chunk, note=True)
        with self._change():
            self._restructure(building=True)

    def add(self, chunks: Iterable[Chunk]) -> int:
        """Take in images; see `GalleryIndex.add`."""
        self._require_writing()
        taken = sum(self._insert_chunk(chunk) for chunk in chunks)
        with self._change():
            kind, structure = self._resolve_kind(), self._about["structure"] or {"kind": "flat", "covered": math.inf}
            late = self._about["vectors"] - structure["covered"]
            changed = can_train(kind, self._table.count()) and kind != structure["kind"]
            if changed or late > max(LATE_LEAST, LATE_PART * structure["covered"]):
                self._restructure()
        return taken

    def compact(self) -> None:
        """Rewrite the files without the vectors of removed images."""
        self._require_writing()
        with self._change():
            old, rows, number = self._vectors(), self._table.rows(ANY), self._about["number"] + 1
            new = files.VectorFile(self._folder / f"vectors-{number}.f32", self.width)
            new.path.unlink(missing_ok=True)  # of a compaction that did not finish
            checksum = written = 0
            for block in old.blocks(self._about["vectors"], rows):
                checksum, written = new.append(written, block, checksum), written + len(block)
            with self._table.transaction(write=True):
                self._table.renumber(rows)
                self._table.store(vectors=written, checksum=checksum, number=number, structure=None)
            self._restructure()

    def info(self) -> Info:
        """Describe the index."""
        with self._table.transaction():
            self._refresh()
            about, images, chunks = self._about, self._table.count(), self._table.chunks()
        structure = about["structure"] or {}
        return Info(
            uri=self.uri,
            backend="faiss",
            kind=structure.get("kind", "flat"),
            images=images,
            width=self.width,
            fingerprint=about["fingerprint"],
            chunks=chunks,
            complete=about["complete"],
            removed=about["vectors"] - images,
            effort=structure.get("effort", 0),
            recall=structure.get("recall", 1.0),
            size=files.measure_size(self._folder),
        )

    def check(self) -> None:
        """Compare every file with its checksum."""
        with self._table.transaction():
            self._refresh()
            self._table.check()
            about, structure = self._about, self._about["structure"]
        try:
            self._vectors(about).check(about["vectors"], about["checksum"])
            if structure:
                files.check_checksum(self._folder / structure["file"], structure["size"], structure["checksum"])
        except InputError:
            self._refresh()
            if (about["number"], structure) == (self._about["number"], self._about["structure"]):
                raise
            self.check()  # another program has replaced the files meanwhile

    def close(self) -> None:
        """Close the files and release the lock."""
        with self._changing:
            if hasattr(self, "_table"):
                self._table.close()
            if self._lock is not None:
                self._lock.release()

    def _max_results(self) -> int:
        with self._table.transaction():
            self._refresh()
            return max(1, self._about["vectors"])

    def _nearest(self, queries: np.ndarray, k: int, where: Where) -> list[list[Match]]:
        with self._table.transaction():
            self._refresh()
            number, lookup, counted = self._about["number"], self._searcher, self._rows(where)
        scores, rows = lookup.nearest(queries, k, counted)
        with self._table.transaction():
            self._refresh()
            entries = self._entries(rows)
            # A row is of the same image for as long as its file of vectors is the one that counts.
            if number != self._about["number"] or entries.keys() != set(rows[rows != MISSING].tolist()):
                scores, rows = self._searcher.nearest(queries, k, self._rows(where))
                entries = self._entries(rows)
        return [
            [Match(float(score), entries[row]) for score, row in zip(*pair, strict=True) if row != MISSING]
            for pair in zip(scores, rows.tolist(), strict=True)
        ]

    def _remove(self, where: Where) -> int:
        with self._change():
            with self._table.transaction(write=True):
                gone = self._table.delete(where)
            vectors = self._about["vectors"]
            if vectors - self._table.count() > max(GONE_LEAST, GONE_PART * vectors):
                self.compact()
            self._refresh()
        return gone

    def _insert_chunk(self, chunk: Chunk, note: bool = False) -> int:
        """Take in a chunk: its vectors are on the disk before the table knows of them."""
        filled = self._with_vectors(chunk)
        with self._change():
            about = self._about
            checksum = self._vectors().append(about["vectors"], filled.vectors, about["checksum"])
            with self._table.transaction(write=True):
                self._table.insert(about["vectors"], filled.entries)
                self._table.store(vectors=about["vectors"] + len(filled.entries), checksum=checksum)
                if note:
                    self._table.put_chunk(filled.name, len(filled.entries))
            self._refresh()
        return len(filled.entries)

    def _resolve_kind(self) -> str:
        return self._about["kind"] or choose_kind(self._table.count())

    def _restructure(self, building: bool = False) -> None:
        """Make what makes search fast, for the images as they are now, and remove what nothing refers to."""
        self._refresh()
        kind = self._resolve_kind()
        # Of an index that others search already, an error would leave nothing to search: few images need no structure.
        few = not building and not can_train(kind, self._table.count())
        structure = None if few or kind == "flat" else self._write_structure(kind)
        with self._table.transaction(write=True):
            self._table.store(structure=structure, complete=True)
        self._refresh()
        files.remove_others(self._folder, {self._vectors().path.name, structure["file"] if structure else None})

    def _write_structure(self, kind: str) -> dict[str, Any]:
        rows, vectors, count = self._table.rows(ANY), self._searcher.vectors, self._about["vectors"]
        structure, recall = build_structure(kind, vectors, self._vectors().blocks(count), rows)
        old = self._about["structure"]
        number = old["number"] + 1 if old else 0
        path = self._folder / f"structure-{number}.faiss"
        with atomic_write(path) as draft:
            structure.write(draft)
        size = path.stat().st_size
        about = {"number": number, "file": path.name, "size": size, "checksum": files.checksum_file(path, size)}
        about |= {"kind": kind, "covered": count, "effort": structure.effort, "recall": recall}
        return {**about, "held_out": structure.held_out.tolist()}

    def _entries(self, rows: np.ndarray) -> dict[int, Entry]:
        return self._table.entries(rows[rows != MISSING].tolist())

    def _rows(self, where: Where) -> np.ndarray | None:
        """Return the rows that meet the conditions; None for all of the vectors."""
        key = where.key
        if key not in self._known:
            if len(self._known) >= MAX_FILTERS:
                self._known.pop(next(iter(self._known)))
            rows = self._table.rows(where)
            self._known[key] = None if len(rows) == self._about["vectors"] else rows
        return self._known[key]

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Let only this thread change files and table, after a refresh."""
        with self._changing:
            self._refresh()
            yield

    def _refresh(self) -> None:
        """Load what this or another program changed."""
        with self._table.transaction():  # or a file that the table names could be removed before it is opened
            about = self._table.about()
            if about == self._about:
                return
            if (saved := about["structure"]) is None:
                structure = None
            elif saved == self._about.get("structure"):
                structure = self._searcher.structure
            else:
                structure = self._read_structure(saved, about["width"])
            vectors = self._vectors(about).read(about["vectors"])
            self._searcher = Searcher(vectors, structure, saved["covered"] if saved else 0)
            self._about, self.width = about, about["width"]
            self._known.clear()

    def _read_structure(self, about: dict[str, Any], width: int) -> Structure:
        path, size = self._folder / about["file"], about["size"]
        files.check_size(path, size)
        if size <= files.CHECK_UP_TO:  # before faiss, which trusts what it reads
            files.check_checksum(path, size, about["checksum"])
        structure = Structure.read(path, about["kind"], about["effort"], about["held_out"])
        structure.check(path, width, about["covered"])
        return structure

    def _vectors(self, about: dict[str, Any] | None = None) -> files.VectorFile:
        about = about or self._about
        return files.VectorFile(self._folder / f"vectors-{about['number']}.f32", about["width"])

    def _check_small(self, building: bool) -> None:
        """Refuse what is damaged, as far as that is quick to see, and what is not finished."""
        about = self._about
        self._require_complete(about["complete"], building)
        self._table.check_rows()
        if self._table.count() <= ROWS_CHECKED:
            self._table.check()
        if about["vectors"] * self.width * files.BYTES <= files.CHECK_UP_TO:
            self._vectors().check(about["vectors"], about["checksum"])
