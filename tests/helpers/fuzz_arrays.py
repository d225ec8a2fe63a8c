"""What evaluation keeps in files, damaged: features, results, the features of a gallery."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from data import trees
from fuzz_cases import changed, damaged
from fuzz_targets import Target
from hypothesis import strategies as st

from agreid_plugin.data.datasets import load
from agreid_plugin.data.protocols import Meta, protocol, select
from agreid_plugin.evaluation import (
    FeatureSet,
    compare,
    evaluate,
    format_table,
    load_features,
    load_results,
    save_features,
    save_results,
)
from agreid_plugin.evaluation.calibration import Calibration, calibrate
from agreid_plugin.retrieval.feature_cache import FeatureCache

MAKER = "a model"
ODD_ARRAYS = [
    *(np.float32(1), np.zeros(0), np.zeros((0, 4)), np.full((9, 4), np.nan), np.ones((9, 4), dtype=complex)),
    *(np.array(["a"] * 9), np.array([{}] * 9, dtype=object), np.zeros((9, 4), dtype=bool), np.ones((9, 2, 2))),
    *(np.full((9, 4), 1e300), np.full(9, -(2**62)), np.arange(3.0), np.arange(9.0), np.zeros(9, dtype="M8[s]")),
]


def features_of(folder: Path) -> FeatureSet:
    """Return features of the test images of a small CARGO."""
    dataset = load("CARGO", trees.cargo(folder / "CARGO"))
    # Where the folder lies changes from run to run, and the file with it.
    inside = tuple(replace(record, path=os.path.relpath(record.path, folder)) for record in dataset.records)
    dataset = replace(dataset, root="CARGO", records=inside)
    records = dataset.split("query", "gallery")
    return FeatureSet(dataset, records, (np.random.default_rng(0).random((len(records), 4), dtype=np.float32),))


def results_of(features: FeatureSet) -> list:
    """Evaluate them."""
    return [evaluate(*_asked(features))]


def _asked(features: FeatureSet) -> tuple[Any, ...]:
    """Return what protocols are computed from: features and labels of queries and gallery, and the protocol."""
    task = protocol("CARGO/ALL")
    chosen = select(task, features.dataset)
    sides = [[*chosen.query], [*chosen.gallery]]
    return (*(features.images[0][features.rows(side)] for side in sides), *map(Meta.collect, sides), task)


def _make_features(folder: Path) -> Path:
    save_features(folder / "features.npz", features_of(folder))
    return folder / "features.npz"


def _read_features(file: Path) -> None:
    features = load_features(file)
    Meta.collect(features.dataset.records)
    assert len(features.rows(features.records)) == len(features.images[0])
    assert all(isinstance(record.split, str) for record in features.dataset.records)


def _make_results(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        save_results(folder / "results.json", results_of(features_of(folder)))
        return folder / name

    return make


def _read_results(file: Path) -> None:
    for entries in load_results(file.parent).values():
        format_table(entries.values())
        for entry in entries.values():
            if entry.per_query is not None:
                compare(entry, entry, draws=2)


def _make_thresholds(folder: Path) -> Path:
    calibrate(*_asked(features_of(folder)), fprs=(0.5,), draws=2).save(folder / "calibration.json")
    return folder / "calibration.json"


def _read_thresholds(file: Path) -> None:
    thresholds = Calibration.load(file)
    for name, direction in thresholds.directions.items():
        for point in direction.points:
            assert isinstance(thresholds.point(name, point.fpr).threshold, int | float)
    json.dumps(thresholds.as_dict())


def _make_cache(folder: Path) -> Path:
    paths = [str(trees.write_images(folder, [f"{n}.jpg"]) / f"{n}.jpg") for n in range(3)]
    cache = FeatureCache(folder / "gallery.npz", MAKER)
    for path in cache.missing(paths):
        cache.put(path, np.ones(4, dtype=np.float32), 0)
    cache.save()
    return folder / "gallery.npz"


def _read_cache(file: Path) -> None:
    cache = FeatureCache(file, MAKER)
    paths = [str(path) for path in sorted(file.parent.glob("*.jpg"))]
    if len(cache.missing(paths)) < len(paths):
        assert cache.chunk(paths).vectors.ndim == 2


def damaged_npz(original: bytes) -> st.SearchStrategy[bytes]:
    """An npz file that is damaged, holds odd arrays, or tells something odd in `about`."""
    arrays = dict(np.load(io.BytesIO(original)))
    names = st.sampled_from(sorted(arrays))
    odd = st.builds(lambda name, array: {**arrays, name: array}, names, st.sampled_from(ODD_ARRAYS))
    less = st.builds(lambda name: {key: arrays[key] for key in arrays if key != name}, names)
    ways = [damaged(original), damaged(original), odd.map(_npz), odd.map(_npz), less.map(_npz)]
    if "about" in arrays:
        told = changed(json.loads(arrays["about"].tobytes())).map(_bytes)
        ways += [told.map(lambda about: _npz({**arrays, "about": about}))] * 3
    return st.one_of(ways)


def _bytes(about: Any) -> np.ndarray:
    return np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)


def _npz(arrays: dict[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


ARRAY_TARGETS = [
    Target("features", _make_features, _read_features, damaged_npz),
    Target("results", _make_results("results.json"), _read_results),
    Target("single queries", _make_results("results.queries.npz"), _read_results, damaged_npz, also=("results.json",)),
    Target("thresholds", _make_thresholds, _read_thresholds),
    Target("gallery", _make_cache, _read_cache, damaged_npz),
]
