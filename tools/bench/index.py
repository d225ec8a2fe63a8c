"""Kinds of indexes against exact search on the same clustered vectors: CPU time, memory and recall.

The vectors are like those of a gallery: people in groups of like clothes, some images of each person. Queries are
further images of people in the gallery. In every round each index is built in one process and searched in another, so
that the peaks of memory are its own; pages of mapped files count as long as the system leaves them in memory.

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

from agreid_plugin.engine.processes import in_process, peak_memory
from agreid_plugin.retrieval.index import Chunk, Entry, Info, build_index, open_index
from agreid_plugin.retrieval.index.base import check_kind
from agreid_plugin.retrieval.index.index_types import RECALL_AT, measure_recall
from agreid_plugin.types import View
from bench.rivals import METHOD, alternate, compute_ratios, table, time_call

CHUNK = 20_000  # images that go in together
IMAGES_A_PERSON, GROUPS = 20, 1000
SPREAD = 0.7  # of people in a group and of images of a person, in lengths of a group's center
PATIENCE = 10.0  # seconds that queries are asked one by one
BATCH = 100  # queries of a call, when they are not asked one by one

_in_process = partial(in_process, advice="take fewer vectors")


@dataclass(frozen=True)
class Sizes:
    """N, D and Q."""

    count: int
    width: int
    queries: int

    def __str__(self) -> str:
        return f"{self.count:,} vectors of width {self.width}, {self.queries} queries"


@dataclass(frozen=True)
class Measurement:
    """What one index took in one round.

    Attributes:
        info: what it is.
        build: CPU seconds from vectors to a finished index on the disk, measuring its recall included.
        build_memory: megabytes that this took on top of an idle process.
        found: the best of each query.
        single: CPU seconds a query, asked one by one, entries of the images found included.
        batched: CPU seconds a query, a hundred together.
        search_memory: megabytes that searching took.
    """

    info: Info
    build: float
    build_memory: float
    found: list[set[str]]
    single: float
    batched: float
    search_memory: float


def bench_index(sizes: Sizes, kinds: Sequence[str], milvus: Sequence[str], rounds: int) -> Iterator[str]:
    """Measure kinds of faiss and of Milvus Lite against faiss' flat, and yield lines to print, the table last."""
    for kind in (*kinds, *milvus):
        check_kind(kind)
    yield f"{sizes}; against faiss' exact search\n{rounds} rounds, {faiss.omp_get_max_threads()} threads; {METHOD}"
    names = ["flat", *(kind for kind in kinds if kind != "flat"), *(f"{kind}.db" for kind in milvus)]
    with TemporaryDirectory() as place:
        _in_process(write_vectors, sizes, place)
        found = alternate({name: partial(_measure, place, name) for name in names}, rounds)
    flat = found["flat"]
    yield (
        f"faiss flat: {np.median([each.build for each in flat]):.3g} CPU s to build, a query "
        f"{1000 * np.median([each.single for each in flat]):.3g} CPU ms one by one, "
        f"{1000 * np.median([each.batched for each in flat]):.3g} by {BATCH}"
    )
    head = ["index", "build takes", "one by one, speed", f"by {BATCH}, speed", f"recall@{RECALL_AT}"]
    yield table([_row(each, flat) for each in found.values()], [*head, "peak MB, build", "search", "MB on disk"])


def _row(measured: list[Measurement], flat: list[Measurement]) -> list[str]:
    last, truth = measured[-1], flat[-1].found

    def column(of: list[Measurement], name: str) -> list[Any]:
        return [getattr(each, name) for each in of]

    return [
        f"{last.info.backend} {last.info.kind}",
        str(compute_ratios(column(measured, "build"), column(flat, "build"))),
        *(str(compute_ratios(column(flat, name), column(measured, name))) for name in ("single", "batched")),
        f"{measure_recall(last.found, truth):.3f}",
        *(f"{np.median(column(measured, name)):.0f}" for name in ("build_memory", "search_memory")),
        f"{(last.info.size or 0) / 2**20:.0f}",
    ]


def _measure(place: str, name: str) -> Measurement:
    with TemporaryDirectory(dir=place) as folder:
        uri = str(Path(folder) / name)
        built = _in_process(measure_build, place, uri)
        return Measurement(*built, *_in_process(measure_search, place, uri))


def write_vectors(sizes: Sizes, place: str) -> None:
    """Write the vectors, (N, D), and the queries, (Q, D), to files."""
    random = np.random.default_rng(0)
    groups = random.normal(size=(GROUPS, sizes.width)).astype(np.float32)
    shape = (sizes.count, sizes.width)
    vectors = np.lib.format.open_memmap(Path(place) / "vectors.npy", "w+", np.float32, shape)
    queries: list[np.ndarray] = []
    for start in range(0, sizes.count, CHUNK):
        size = min(CHUNK, sizes.count - start)
        people = groups[random.integers(GROUPS, size=-(-size // IMAGES_A_PERSON))]
        people = people + SPREAD * random.standard_normal(people.shape, dtype=np.float32)
        vectors[start : start + size] = _images(random, np.repeat(people, IMAGES_A_PERSON, axis=0)[:size])
        wanted = sizes.queries * (start + size) // sizes.count - sum(map(len, queries))
        queries.append(_images(random, people[random.integers(len(people), size=wanted)]))
    np.save(Path(place) / "queries.npy", np.concatenate(queries))


def measure_build(place: str, uri: str) -> tuple[Info, float, float]:
    """Build an index, and return what it is, CPU seconds and megabytes."""
    infos: list[Info] = []
    before = peak_memory()
    kind = Path(uri).name.removesuffix(".db")
    seconds = time_call(lambda: infos.append(build_index(uri, _chunks(place), kind=kind)))
    return infos[0], seconds, peak_memory() - before


def measure_search(place: str, uri: str) -> tuple[list[set[str]], float, float, float]:
    """Search, and return the best of each query, CPU seconds a query one by one and together, and megabytes."""
    queries, before = np.load(Path(place) / "queries.npy"), peak_memory()
    blocks = [queries[first : first + BATCH] for first in range(0, len(queries), BATCH)]
    found: list[Any] = []
    with open_index(uri) as index:
        index.search(queries[:1], RECALL_AT)  # the first has pages to read
        batched = time_call(lambda: found.extend(hits for block in blocks for hits in index.search(block, RECALL_AT)))
        single = _one_by_one(lambda query: index.search(query, RECALL_AT), queries)
    best = [{match.entry.path for match in hits} for hits in found]
    return best, single, batched / len(queries), peak_memory() - before


def _one_by_one(search: Callable[[np.ndarray], object], queries: np.ndarray) -> float:
    taken: list[float] = []
    until = time.perf_counter() + PATIENCE
    while len(taken) < len(queries) and (not taken or time.perf_counter() < until):
        taken.append(time_call(partial(search, queries[len(taken) : len(taken) + 1])))
    return float(np.mean(taken))


def _images(random: np.random.Generator, people: np.ndarray) -> np.ndarray:
    return people + SPREAD * random.standard_normal(people.shape, dtype=np.float32)


def _chunks(place: str) -> Iterator[Chunk]:
    vectors = np.load(Path(place) / "vectors.npy", mmap_mode="r")
    for start in range(0, len(vectors), CHUNK):
        block = np.array(vectors[start : start + CHUNK])
        numbers = range(start, start + len(block))
        yield Chunk([Entry(f"{n:09d}.jpg", View(n % 2), n % 13, n // IMAGES_A_PERSON) for n in numbers], block)
