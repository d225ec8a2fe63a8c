"""Galleries for tests of indexes, and the slow loop they are compared with."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import BinaryIO

import numpy as np

from agreid_plugin.errors import InputError
from agreid_plugin.retrieval.index import Chunk, Entry, Where, open_index
from agreid_plugin.retrieval.index.folder import TABLE
from agreid_plugin.types import UNKNOWN, View

WIDTH = 8


def entries(count: int, start: int = 0) -> list[Entry]:
    """Images of which something is unknown now and then."""
    return [
        Entry(
            path=f'crops/{number:05d} it\'s "ü".jpg',
            view=(View.AERIAL, View.GROUND, None)[number % 3],
            camera=number % 5 - 1,
            pid=number // 4,
            platform=("UAV", "cctv", "")[number % 3],
            time=None if number % 7 == 0 else 1000.0 + number,
            tags={"weather": ("rain", "sun")[number % 2], "zone.1": str(number % 4)} if number % 6 else {},
        )
        for number in range(start, start + count)
    ]


def vectors(count: int, seed: int = 0, width: int = WIDTH) -> np.ndarray:
    """Vectors of many lengths."""
    random = np.random.default_rng(seed)
    return (random.normal(size=(count, width)) * random.uniform(0.1, 9, size=(count, 1))).astype(np.float32)


def clustered(count: int, width: int = 16, clusters: int = 40, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    centers = random.normal(size=(clusters, width))
    return (centers[random.integers(clusters, size=count)] + 0.3 * random.normal(size=(count, width))).astype(
        np.float32
    )


def chunks(images: list[Entry], features: np.ndarray, size: int = 50) -> Iterator[Chunk]:
    for start in range(0, len(images), size):
        yield Chunk(images[start : start + size], features[start : start + size])


def meets(entry: Entry, where: Where) -> bool:
    """The conditions, spelled out."""
    if where.view is not None and entry.view != where.view:
        return False
    if where.cameras and entry.camera not in where.cameras:
        return False
    if where.pids and entry.pid not in where.pids:
        return False
    if where.platform and entry.platform != where.platform.lower():
        return False
    if where.after is not None and (entry.time is None or entry.time < where.after):
        return False
    if where.before is not None and (entry.time is None or entry.time >= where.before):
        return False
    if where.paths and entry.path not in where.paths:
        return False
    return all(entry.tags.get(name) == value for name, value in where.tags.items())


def slow(images: list[Entry], features: np.ndarray, query: np.ndarray, k: int, where: Where) -> list[tuple[str, float]]:
    """The best images by a loop over all, equal ones by their paths."""
    scored = []
    for entry, feature in zip(images, features.astype(float), strict=True):
        if meets(entry, where):
            cosine = feature @ query / (np.linalg.norm(feature) * np.linalg.norm(query))
            scored.append((entry.path, round(float(cosine), 9)))
    return sorted(scored, key=lambda pair: (-pair[1], pair[0]))[:k]


FILTERS = [
    Where(),
    Where(view=View.AERIAL),
    Where(cameras=(0, 3)),
    Where(cameras=(UNKNOWN,)),
    Where(pids=(1, 2, 3)),
    Where(platform="Uav"),
    Where(after=1050),
    Where(before=1050),
    Where(after=1020, before=1090),
    Where(tags={"weather": "rain"}),
    Where(tags={"weather": "sun", "zone.1": "3"}, view=View.GROUND),
    Where(paths=(entries(1, 3)[0].path, "nobody.jpg")),
    Where(view=View.GROUND, cameras=(2,), after=1010, before=1100, tags={"weather": "rain"}, platform="cctv"),
    Where(tags={"weather": "snow"}),
]


def chunk_for(number: int) -> Chunk:
    """A chunk of one image, whose vector follows from its number."""
    return Chunk([Entry(f"{number}.jpg", camera=number % 3)], vectors(1, seed=number))


def fork(call: Callable[[BinaryIO], None]) -> tuple[int, BinaryIO]:
    """Have a process do something that may end it; return its number, and what it writes to the file it is given."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            with os.fdopen(writing, "wb", buffering=0) as file:
                call(file)
        finally:
            os._exit(1)
    os.close(writing)
    return child, os.fdopen(reading, "rb", buffering=0)


def add_until_killed(folder: Path, first: int, seconds: float) -> int:
    """Add images one at a time in a process that is killed after a while; return the first number that was not in."""

    def add(acknowledged: BinaryIO) -> None:
        index = open_index(folder, write=True)
        for number in count(first):
            index.add([chunk_for(number)])
            acknowledged.write(b".")

    child, acknowledged = fork(add)
    with acknowledged:
        known = len(acknowledged.read(1))
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return first + known + len(acknowledged.readall())


def die_while_writing(folder: Path) -> None:
    """Kill a process when half of a change is in the table's file."""

    def die(_) -> None:
        index = open_index(folder, write=True)
        for name in ("cache_spill", "cache_size"):  # every page that changes is written at once
            index._table._base.execute(f"PRAGMA {name} = 1")
        with index._table.transaction(write=True):
            index._table.insert(10**6, entries(500, start=10**6))
            os.kill(os.getpid(), signal.SIGKILL)

    child, _ = fork(die)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert (folder / f"{TABLE}-journal").stat().st_size


def search_unwritable(folder: Path) -> str:
    """Search a folder as a user who may not write there; return the best path, or what is wrong."""

    def search(answer: BinaryIO) -> None:
        if os.geteuid() == 0:
            os.setuid(65534)
        assert not os.access(folder, os.W_OK)
        try:
            answer.write(open_index(folder).search(vectors(1), 1)[0][0].entry.path.encode())
        except InputError as error:
            answer.write(str(error).encode())

    child, answer = fork(search)
    with answer:
        found = answer.read().decode()
    os.waitpid(child, 0)
    return found
