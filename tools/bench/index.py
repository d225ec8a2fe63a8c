"""Kinds of indexes against exact search on the same clustered vectors: time, memory and recall.

The vectors are like those of a gallery: people in groups of like clothes, some images of each person. Queries are
further images of people in the gallery. Every index is built in one process and searched in another, so that the peaks
of memory are its own; pages of mapped files count as long as the system leaves them in memory.

Shapes: N vectors, Q queries, D width.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import faiss
import numpy as np

from agreid_plugin.evaluation.index import Chunk, Entry, Info, build_index, open_index
from agreid_plugin.evaluation.index.base import KINDS, check_kind
from agreid_plugin.evaluation.index.kinds import RECALL_AT, recall_of
from agreid_plugin.evaluation.processes import in_process, peak_memory
from agreid_plugin.types import View

CHUNK = 20_000  # images that go in together
IMAGES_A_PERSON, GROUPS = 20, 1000
SPREAD = 0.7  # of people in a group and of images of a person, in lengths of a group's center
PATIENCE = 10.0  # seconds that queries are asked one by one
BATCH = 100  # queries of a call, when they are not asked one by one

_in_process = partial(in_process, advice="take fewer vectors")


@dataclass(frozen=True)
class Setting:
    """What is measured: N, D, Q, and the threads that faiss may use."""

    count: int = 1_000_000
    width: int = 256
    queries: int = 500
    threads: int = 1


@dataclass(frozen=True)
class Row:
    """What one index took.

    Attributes:
        engine: `faiss` or `milvus-lite`.
        kind: one of `KINDS`.
        build_seconds: from vectors to a finished index on the disk, measuring its recall included.
        single: queries a second, asked one by one, with what is known of the images found.
        batched: queries a second, a hundred together.
        recall: part of the 10 best of exact search that were found.
        build_memory: megabytes that building took on top of an idle process.
        search_memory: megabytes that searching took.
        size: megabytes on the disk.
    """

    engine: str
    kind: str
    build_seconds: float
    single: float
    batched: float
    recall: float
    build_memory: float
    search_memory: float
    size: float


def bench(
    setting: Setting | None = None,
    kinds: Sequence[str] = KINDS,
    milvus: Sequence[str] = (),
    folder: str | Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Measure kinds of faiss and of Milvus Lite, faiss' flat first, which the others are compared with.

    Args:
        setting: how much of what.
        kinds: of faiss; `flat` is always measured.
        milvus: kinds of Milvus Lite.
        folder: where to put the files, which are removed afterwards; None takes the system's folder for such files.
        tell: called with a line before and after each measurement.
    """
    setting = setting or Setting()
    for kind in (*kinds, *milvus):
        check_kind(kind)
    rows: list[Row] = []
    with TemporaryDirectory(dir=folder) as place:
        _in_process(write_vectors, setting, place)
        names = ["flat", *(kind for kind in kinds if kind != "flat"), *(f"{kind}.db" for kind in milvus)]
        truth = None
        for name in names:
            tell(f"{name}: {setting.count} vectors, {setting.width} wide")
            info, *built = _in_process(measure_build, setting, place, name)
            found, *searched = _in_process(measure_search, setting, place, name)
            truth = found if truth is None else truth
            rows.append(_row(info, built, searched, recall_of(found, truth)))
            tell(", ".join(f"{name}: {value}" for name, value in table(rows[-1:])[0].items()))
    return rows


def table(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Return rows in words, for a table."""
    return [
        {
            "index": f"{row.engine} {row.kind}",
            "build": f"{row.build_seconds:.1f} s",
            "queries/s, one by one": f"{row.single:.0f}" if row.single >= 10 else f"{row.single:.1f}",
            f"queries/s, by {BATCH}": f"{row.batched:.0f}",
            f"recall@{RECALL_AT}": f"{row.recall:.3f}",
            "peak memory, build": f"{row.build_memory:.0f} MB",
            "peak memory, search": f"{row.search_memory:.0f} MB",
            "disk": f"{row.size:.0f} MB",
        }
        for row in rows
    ]


def write_vectors(setting: Setting, place: str) -> None:
    """Write the vectors, (N, D), and the queries, (Q, D), to files."""
    random = np.random.default_rng(0)
    groups = random.normal(size=(GROUPS, setting.width)).astype(np.float32)
    shape = (setting.count, setting.width)
    vectors = np.lib.format.open_memmap(Path(place) / "vectors.npy", "w+", np.float32, shape)
    queries: list[np.ndarray] = []
    for start in range(0, setting.count, CHUNK):
        size = min(CHUNK, setting.count - start)
        people = groups[random.integers(GROUPS, size=-(-size // IMAGES_A_PERSON))]
        people = people + SPREAD * random.standard_normal(people.shape, dtype=np.float32)
        vectors[start : start + size] = _images(random, np.repeat(people, IMAGES_A_PERSON, axis=0)[:size])
        wanted = setting.queries * (start + size) // setting.count - sum(map(len, queries))
        queries.append(_images(random, people[random.integers(len(people), size=wanted)]))
    np.save(Path(place) / "queries.npy", np.concatenate(queries))


def measure_build(setting: Setting, place: str, name: str) -> tuple[Info, float, float]:
    """Build an index, and return what it is, the seconds and the megabytes."""
    faiss.omp_set_num_threads(setting.threads)
    before, start = peak_memory(), time.perf_counter()
    info = build_index(Path(place) / name, _chunks(place), kind=name.removesuffix(".db"))
    return info, time.perf_counter() - start, peak_memory() - before


def measure_search(setting: Setting, place: str, name: str) -> tuple[list[set[str]], float, float, float]:
    """Search, and return the best of each query, queries a second one by one and together, and the megabytes."""
    faiss.omp_set_num_threads(setting.threads)
    queries, before = np.load(Path(place) / "queries.npy"), peak_memory()
    with open_index(Path(place) / name) as index:
        index.search(queries[:1], RECALL_AT)  # the first has pages to read
        found, start = [], time.perf_counter()
        for first in range(0, len(queries), BATCH):
            found += index.search(queries[first : first + BATCH], RECALL_AT)
        batched = len(queries) / (time.perf_counter() - start)
        single = _one_by_one(lambda query: index.search(query, RECALL_AT), queries)
    return [{match.entry.path for match in hits} for hits in found], single, batched, peak_memory() - before


def _one_by_one(search: Callable[[np.ndarray], Any], queries: np.ndarray) -> float:
    asked, start = 0, time.perf_counter()
    while asked < len(queries) and (not asked or time.perf_counter() - start < PATIENCE):
        search(queries[asked : asked + 1])
        asked += 1
    return asked / (time.perf_counter() - start)


def _images(random: np.random.Generator, people: np.ndarray) -> np.ndarray:
    return people + SPREAD * random.standard_normal(people.shape, dtype=np.float32)


def _chunks(place: str) -> Iterator[Chunk]:
    vectors = np.load(Path(place) / "vectors.npy", mmap_mode="r")
    for start in range(0, len(vectors), CHUNK):
        block = np.array(vectors[start : start + CHUNK])
        numbers = range(start, start + len(block))
        yield Chunk([Entry(f"{n:09d}.jpg", View(n % 2), n % 13, n // IMAGES_A_PERSON) for n in numbers], block)


def _row(info: Info, built: list[float], searched: list[float], recall: float) -> Row:
    (seconds, build_memory), (single, batched, search_memory) = built, searched
    size = (info.size or 0) / 2**20
    return Row(info.engine, info.kind, seconds, single, batched, recall, build_memory, search_memory, size)
