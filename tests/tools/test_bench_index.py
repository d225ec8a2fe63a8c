"""The benchmark of indexes: its vectors, and rows of every engine from one small run."""

import numpy as np
import pytest
from bench.index import Setting, measure_build, measure_search, write_vectors
from bench.index import bench as bench_indexes
from conftest import assert_one_line

from agreid_plugin.errors import InputError


def test_vectors_are_people_and_queries_are_among_them(tmp_path):
    write_vectors(Setting(count=410, width=32, queries=30), str(tmp_path))
    vectors, queries = np.load(tmp_path / "vectors.npy"), np.load(tmp_path / "queries.npy")
    assert (vectors.shape, queries.shape) == ((410, 32), (30, 32))
    vectors, queries = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (vectors, queries))
    best = np.argsort(-queries @ vectors.T, axis=1)[:, :10] // 20  # the person of each
    assert np.mean([len(set(people)) == 1 for people in best]) > 0.9


def test_one_index_is_measured(tmp_path):
    setting = Setting(count=2000, width=16, queries=20)
    write_vectors(setting, str(tmp_path))
    info, seconds, memory = measure_build(setting, str(tmp_path), "ivf")
    assert (info.kind, info.images) == ("ivf", 2000)
    assert seconds > 0
    assert memory >= 0
    found, single, batched, _ = measure_search(setting, str(tmp_path), "ivf")
    assert [len(paths) for paths in found] == [10] * 20
    assert min(single, batched) > 0


def test_the_command_prints_a_row_for_each_index(bench, tmp_path):
    sizes = ("--vectors", 1000, "--width", 16, "--queries", 20, "--folder", tmp_path)
    outcome = bench("index", *sizes, "--kinds", "ivf", "--milvus", "flat")
    assert outcome.code == 0, outcome.err
    head, _, *rows = [[cell.strip() for cell in line.split("|")] for line in outcome.out.splitlines() if line[0] == "|"]
    assert [row[1] for row in rows] == ["faiss flat", "faiss ivf", "milvus-lite flat"]
    recall = [float(row[head.index("recall@10")]) for row in rows]
    assert recall[0] == recall[2] == 1 >= recall[1] > 0.8
    assert not list(tmp_path.iterdir())
    assert_one_line(bench("index", "--vectors", 0), "--vectors is 0", program="tools/bench")


def test_kinds_are_checked_before_anything_is_made():
    with pytest.raises(InputError, match="index kind 'tree' unknown"):
        bench_indexes(kinds=("tree",))
