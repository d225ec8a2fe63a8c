"""The table of a grid from made-up evaluations: spread, significance, what does not compare, and its picture."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from agreid_plugin.engine.ablation_table import compute_cells, write_picture, write_tables
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import Metrics, PerQuery
from agreid_plugin.evaluation.metrics import compute_means


def made_up(first: list[int], views: str = "") -> Metrics:
    """An evaluation of 40 people with two queries each; `first` are the ranks of their first matches."""
    ranks = np.array(first)
    queries = PerQuery(np.arange(80), np.arange(80) // 2, 1 / ranks, 1 / ranks, ranks)
    return Metrics("CARGO/A2G", "made up", compute_means(queries), 80, {}, 100, views=views, per_query=queries)


def test_significance_of_clear_cases(tmp_path):
    never, always = [2] * 80, [1] * 80
    half = [1] * 40 + [2] * 40
    other_half = [2] * 40 + [1] * 40
    rows = {
        "first": {seed: {"CARGO/A2G": made_up(half)} for seed in (0, 1)},
        "better": {seed: {"CARGO/A2G": made_up(always, "given")} for seed in (0, 1)},
        "worse": {seed: {"CARGO/A2G": made_up(never)} for seed in (0, 1)},
        # Seed for seed as far as can be, and on average over seeds the same for every person.
        "even": {0: {"CARGO/A2G": made_up(always)}, 1: {"CARGO/A2G": made_up(never)}},
        "chance": {seed: {"CARGO/A2G": made_up(other_half)} for seed in (0, 1)},
    }
    found = {name: compute_cells(row, rows["first"], "CARGO/A2G", ["Rank-1"])[0] for name, row in rows.items()}
    assert {name: str(cell) for name, cell in found.items()} == {
        "first": "50.00 ± 0.00",
        "better": "100.00 ± 0.00*",
        "worse": "0.00 ± 0.00*",
        "even": "50.00 ± 70.71",
        "chance": "50.00 ± 0.00",
    }
    assert found["first"].p is None
    assert found["better"].p < 0.01
    assert found["chance"].p > 0.5
    text = write_tables(tmp_path, rows, ["CARGO/A2G"], ["Rank-1"])
    assert "| better | 2       | given    |" in text


def test_without_matplotlib_the_table_says_that_there_is_no_picture(tmp_path, monkeypatch):
    rows = {"first": {0: {"CARGO/A2G": made_up([1] * 80)}}}
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "matplotlib" in write_picture(tmp_path, rows, ["CARGO/A2G"], ["Rank-1"])
    assert not any(tmp_path.iterdir())
    monkeypatch.undo()
    assert "ablation.png" in write_picture(tmp_path, rows, ["CARGO/A2G"], ["Rank-1"])


def test_runs_with_other_queries_are_refused_by_name(tmp_path):
    other = replace(made_up([1] * 80), fingerprint="another")
    rows = {"first": {0: {"CARGO/A2G": made_up([1] * 80)}}, "second": {0: {"CARGO/A2G": other}}}
    with pytest.raises(InputError, match=r"query or gallery sets.*second, seed 0: .*another"):
        write_tables(tmp_path, rows, ["CARGO/A2G"], ["Rank-1"])
    assert not any(tmp_path.iterdir())


def test_given_and_predicted_views_are_shown_but_not_tested():
    rows = [{0: {"CARGO/A2G": made_up([rank] * 80, views)}} for rank, views in ((1, "given"), (2, "predicted"))]
    (cell,) = compute_cells(rows[1], rows[0], "CARGO/A2G", ["Rank-1"])
    assert (str(cell), cell.p) == ("0.00", None)
