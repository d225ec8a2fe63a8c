"""Our evaluator against fast-reid's on the same random features: time and peak memory, each in its own process."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import fastreid.evaluation
import numpy as np
import torch
from fastreid.evaluation.rank import eval_market1501
from fastreid.utils.compute_dist import build_dist
from tabulate import tabulate

from agreid_plugin.data.protocols import Meta, Protocol
from agreid_plugin.evaluation import Distances, evaluate, evaluate_distances
from agreid_plugin.evaluation.processes import in_process, peak_memory
from agreid_plugin.types import UNKNOWN

RULE = Protocol("random", "ALL", hide=("same_camera_same_id",))
IMAGES_PER_IDENTITY, CAMERAS = 20, 6
MAX_RANK = 50


@dataclass(frozen=True)
class Setting:
    """How much to rank."""

    queries: int
    gallery: int
    width: int


@dataclass(frozen=True)
class Measurement:
    """What one evaluator took, beyond the features."""

    name: str
    queries: int
    ranking: float  # seconds, distances given
    whole: float  # seconds, with distances
    peak: float  # megabytes
    mean_ap: float


class _Given(Distances):
    """Distances that are all in memory, so that the ranking alone is timed."""

    name = "given"

    def __init__(self, matrix: np.ndarray):
        self._matrix, self.shape = matrix, matrix.shape

    def rows(self, index: np.ndarray) -> np.ndarray:
        return self._matrix[index]


def _data(setting: Setting) -> tuple[np.ndarray, np.ndarray, Meta, Meta]:
    identities = max(setting.gallery // IMAGES_PER_IDENTITY, 1)

    def side(seed: int, count: int) -> tuple[np.ndarray, Meta]:
        # A stream for each column: fewer queries are then the first of many.
        streams = np.random.default_rng(seed).spawn(3)
        features = streams[0].standard_normal((count, setting.width), dtype=np.float32)
        pids, cameras = streams[1].integers(0, identities, count), streams[2].integers(0, CAMERAS, count)
        return features, Meta(pids, cameras, np.full(count, UNKNOWN), np.full(count, UNKNOWN))

    (query, query_meta), (gallery, gallery_meta) = side(0, setting.queries), side(1, setting.gallery)
    return query, gallery, query_meta, gallery_meta


def _ours(setting: Setting) -> Measurement:
    query, gallery, *metas = _data(setting)
    before = peak_memory()
    whole, metrics = _timed(lambda: evaluate(query, gallery, *metas, RULE))
    peak = peak_memory() - before
    matrix = _distances(query, gallery)
    ranking, _ = _timed(lambda: evaluate_distances(_Given(matrix), *metas, RULE))
    return Measurement("ours", setting.queries, ranking, whole, peak, metrics["mAP"] / 100)


def _theirs(setting: Setting, name: str, rank: Callable) -> Measurement:
    query, gallery, query_meta, gallery_meta = _data(setting)
    before = peak_memory()
    start = time.perf_counter()
    matrix = _distances(query, gallery)
    labels = (query_meta.pid, gallery_meta.pid, query_meta.camera, gallery_meta.camera)
    ranking, (_, precision, _) = _timed(lambda: rank(matrix, *labels, MAX_RANK))
    whole = time.perf_counter() - start
    return Measurement(name, setting.queries, ranking, whole, peak_memory() - before, float(np.mean(precision)))


def _python(setting: Setting) -> Measurement:
    return _theirs(setting, "fast-reid, Python", eval_market1501)


def _cython(setting: Setting, folder: str) -> Measurement:
    sys.path.insert(0, folder)
    evaluate_cy = importlib.import_module("rank_cy").evaluate_cy
    return _theirs(setting, "fast-reid, Cython", lambda *arguments: evaluate_cy(*arguments, False))


def _distances(query: np.ndarray, gallery: np.ndarray) -> np.ndarray:
    return build_dist(torch.from_numpy(query), torch.from_numpy(gallery), "cosine")


def _timed(function: Callable) -> tuple[float, object]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def build_cython(folder: str) -> str:
    """Build the host's Cython ranking in `folder`; returns why not, or nothing."""
    if importlib.util.find_spec("Cython") is None:
        return "Cython is not installed"
    source = Path(fastreid.evaluation.__file__).parent / "rank_cylib" / "rank_cy.pyx"
    shutil.copy(source, folder)
    command = [sys.executable, "-m", "Cython.Build.Cythonize", "--inplace", "rank_cy.pyx"]
    environment = {**os.environ, "CFLAGS": f"-I{np.get_include()} -w"}
    built = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return "" if built.returncode == 0 else f"the build failed: {built.stderr.strip().splitlines()[-1]}"


def bench_evaluation(queries: int, gallery: int, width: int, python_queries: int) -> Iterator[str]:
    """Measure and yield lines to print, the table last."""
    setting = Setting(queries, gallery, width)
    few = Setting(min(python_queries, queries), gallery, width)
    yield f"{queries:,} queries x {gallery:,} gallery images x {width}, {torch.get_num_threads()} threads"
    found = [in_process(_ours, setting)]
    with tempfile.TemporaryDirectory() as folder:
        reason = build_cython(folder)
        if reason:
            yield f"fast-reid, Cython: not measured, {reason}"
        else:
            found.append(in_process(_cython, setting, folder))
    found.append(in_process(_python, few))
    yield _table(found)


def _table(found: list[Measurement]) -> str:
    ours = found[0]
    rows = []
    for entry in found:
        share = ours.queries / entry.queries  # the Python loop had fewer queries
        rows.append(
            [
                entry.name,
                entry.queries,
                entry.ranking * share,
                f"{entry.ranking * share / ours.ranking:.1f}x",
                entry.whole * share,
                f"{entry.whole * share / ours.whole:.1f}x",
                entry.peak,
                100 * entry.mean_ap,
            ]
        )
    head = ["evaluator", "queries", "ranking s", "", "with distances s", "", "peak MB", "mAP"]
    table = tabulate(rows, head, tablefmt="github", floatfmt=".2f")
    return f"{table}\nseconds are for all queries, scaled up where fewer were ranked; x: times ours"
