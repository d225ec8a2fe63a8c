"""Our evaluator against fast-reid's compiled ranking, and all protocols of CARGO against one matrix product."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import fastreid.evaluation
import numpy as np
import torch
from fastreid.utils.compute_dist import build_dist
from torch import Tensor

from agreid_plugin.data.datasets import Dataset
from agreid_plugin.data.protocols import Meta, Protocol
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import FeatureSet, evaluate, evaluate_all
from agreid_plugin.types import Record, View
from bench.rivals import Ways, compare

RULE = Protocol("random", "ALL", hide=("same_camera_same_id",))
IMAGES_PER_IDENTITY, AERIAL, CAMERAS = 20, 5, 13  # CARGO's first 5 cameras fly
MAX_RANK = 50


@dataclass(frozen=True)
class Sizes:
    """How much to rank, and the file of fast-reid's compiled ranking."""

    queries: int
    gallery: int
    width: int
    compiled: str = ""

    def __str__(self) -> str:
        return f"{self.queries:,} queries x {self.gallery:,} gallery images x {self.width:,}"


def bench_evaluation(sizes: Sizes, rounds: int) -> Iterator[str]:
    """Measure one protocol and yield lines to print, the table last."""
    with tempfile.TemporaryDirectory() as folder:
        sizes = replace(sizes, compiled=build_cython(folder))
        rival = "fast-reid's own distances and compiled Cython ranking, and the matrix product only"
        yield from compare({"distances and ranking": _ranking}, sizes, rounds, rival)


def bench_protocols(sizes: Sizes, rounds: int) -> Iterator[str]:
    """Measure all protocols of CARGO and yield lines to print, the table last."""
    rival = "the one matrix product, listed first, that holds the distances of all protocols"
    return compare({"protocols of CARGO": _protocols}, sizes, rounds, rival)


def build_cython(folder: str) -> str:
    """Compile fast-reid's Cython ranking, which it ships as source, in `folder`; returns the file."""
    if importlib.util.find_spec("Cython") is None:
        raise InputError("fast-reid's ranking cannot be compiled, as Cython is not installed: pip install cython")
    shutil.copy(Path(fastreid.evaluation.__file__).parent / "rank_cylib" / "rank_cy.pyx", folder)
    command = [sys.executable, "-m", "Cython.Build.Cythonize", "--inplace", "rank_cy.pyx"]
    environment = {**os.environ, "CFLAGS": f"-I{np.get_include()} -w"}
    built = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if built.returncode:
        raise InputError(f"fast-reid's ranking cannot be compiled: {built.stderr.strip().splitlines()[-1]}")
    return next(str(path) for path in Path(folder).glob("rank_cy.*") if path.suffix in (".so", ".pyd"))


def _records(sizes: Sizes) -> list[Record]:
    """Draw queries, then gallery images, from both views."""
    random, identities = np.random.default_rng(0), max(sizes.gallery // IMAGES_PER_IDENTITY, 1)
    found = []
    for split, count in (("query", sizes.queries), ("gallery", sizes.gallery)):
        pids, cameras = random.integers(0, identities, count), random.integers(0, CAMERAS, count)
        for number, (pid, camera) in enumerate(zip(pids.tolist(), cameras.tolist(), strict=True)):
            view = View.AERIAL if camera < AERIAL else View.GROUND
            found.append(Record(f"{split}/{number}.jpg", pid=pid, camera=camera + 1, view=view, split=split))
    return found


def _features(sizes: Sizes) -> np.ndarray:
    random = np.random.default_rng(1)
    return random.standard_normal((sizes.queries + sizes.gallery, sizes.width), dtype=np.float32)


def _product(features: np.ndarray, queries: int) -> None:
    torch.mm(torch.from_numpy(features[:queries]), torch.from_numpy(features[queries:]).T)


def _ranking(sizes: Sizes) -> Ways:
    spec = importlib.util.spec_from_file_location("rank_cy", sizes.compiled)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return make_ranking(sizes, "fast-reid, Cython", module.evaluate_cy)


def make_ranking(sizes: Sizes, name: str, rank: Callable) -> Ways:
    """Return ours, one of fast-reid's, each giving mAP, and the matrix product."""
    features, records, queries = _features(sizes), _records(sizes), sizes.queries
    query, gallery = features[:queries], features[queries:]
    metas = Meta.collect(records[:queries]), Meta.collect(records[queries:])
    labels = [meta.pid for meta in metas] + [meta.camera for meta in metas]

    def ours() -> Tensor:
        return torch.tensor(evaluate(query, gallery, *metas, RULE)["mAP"] / 100)

    def theirs() -> Tensor:
        distances = build_dist(torch.from_numpy(query), torch.from_numpy(gallery), "cosine")
        return torch.tensor(float(np.mean(rank(distances, *labels, MAX_RANK)[1])))

    return {"ours": ours, name: theirs, "matrix product": lambda: _product(features, queries)}


def _protocols(sizes: Sizes) -> Ways:
    features, records = _features(sizes), tuple(_records(sizes))
    found = FeatureSet(Dataset("CARGO", "", records), records, (features,))

    def evaluated() -> None:
        evaluate_all(found)

    return {"matrix product": lambda: _product(features, sizes.queries), "all protocols": evaluated}
