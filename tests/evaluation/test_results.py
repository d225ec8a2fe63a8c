import json
from dataclasses import replace

import numpy as np
import pytest
from evaluation_cases import make_protocol, random_case

from agreid_plugin.data.datasets import DATASETS
from agreid_plugin.data.protocols import protocols
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import (
    NUMBERS,
    Metrics,
    compare,
    evaluate,
    format_comparison,
    format_short_table,
    format_table,
    group_by_dataset,
    load_results,
    save_results,
)


def metrics(name: str = "ALL", seed: int = 0, **values) -> Metrics:
    case = random_case(seed, queries=20)
    protocol = make_protocol("same_camera_same_id", name=name, source=f"paper of {name}")
    return replace(evaluate(*case.features, *case.metas, protocol, views="given"), **values)


def test_file_round_trip(tmp_path):
    entries = [metrics("ALL"), metrics("A2G")]
    save_results(tmp_path / "results.json", entries)
    loaded = load_results(tmp_path)
    assert list(loaded) == ["TEST"]
    assert list(loaded["TEST"]) == ["ALL", "A2G"]
    for entry in entries:
        read = loaded["TEST"][entry.protocol.split("/")[1]]
        assert replace(read, per_query=None) == replace(entry, per_query=None)
        for name, array in entry.per_query.arrays().items():
            np.testing.assert_array_equal(array, read.per_query.arrays()[name])
    assert compare(entries[0], loaded["TEST"]["ALL"])["mAP"].points == 0


def test_json_holds_the_numbers_by_dataset_and_protocol(tmp_path):
    entry = metrics()
    save_results(tmp_path / "results.json", [entry])
    content = json.loads((tmp_path / "results.json").read_text())["TEST"]["ALL"]
    assert {name: content[name] for name in entry.as_dict()} == entry.as_dict()
    assert (content["source"], content["views"]) == ("paper of ALL", "given")
    assert sum(content["skipped"].values()) == content["skipped_queries"] > 0


def test_numbers_are_read_without_the_side_file(tmp_path):
    save_results(tmp_path / "results.json", [metrics()])
    (tmp_path / "results.queries.npz").unlink()
    read = load_results(tmp_path / "results.json")["TEST"]["ALL"]
    assert read.per_query is None
    with pytest.raises(InputError, match="not kept"):
        compare(read, read)


def test_a_side_file_of_another_run_is_refused(tmp_path):
    save_results(tmp_path / "results.json", [metrics()])
    text = (tmp_path / "results.json").read_text()
    save_results(tmp_path / "results.json", [metrics(seed=1)])
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(InputError, match="are of another run"):
        load_results(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"), [("[]", "expected a dict"), ("{", "not JSON"), ('{"CARGO": {"A2G": {}}}', "not results")]
)
def test_other_files_are_refused(tmp_path, text, words):
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(InputError, match=words):
        load_results(tmp_path)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"has no results\.json: evaluate the run by `fastreid eval`"):
        load_results(tmp_path)


def test_one_protocol_twice_is_refused():
    with pytest.raises(InputError, match="TEST/ALL stands twice"):
        group_by_dataset([metrics(), metrics()])


def test_table_names_protocol_source_and_views():
    text = format_table([metrics("ALL"), metrics("A2G", views="")])
    head, _, first, second = text.splitlines()
    assert [cell.strip() for cell in head.split("|")[1:4]] == ["protocol", "Rank-1", "Rank-5"]
    assert "TEST/ALL" in first
    assert "paper of ALL" in first
    assert "given" in first
    assert "TEST/A2G" in second
    assert "not used" in second


def test_the_short_table_fits_a_terminal_under_every_protocol_of_ours():
    entries = [
        replace(metrics(), protocol=str(each), values=dict.fromkeys(NUMBERS, 100.0), queries=99_999)
        for dataset in DATASETS
        for each in protocols(dataset).values()
    ]
    lines = format_short_table(entries).splitlines()
    assert len(lines) == len(entries) + 1
    assert max(map(len, lines)) <= 80


def test_comparison_table_is_of_one_protocol():
    text = format_comparison({"first": metrics(), "second": metrics()})
    assert text.startswith("TEST/ALL (paper of ALL)\n")
    assert "| first" in text
    assert "| second" in text
    with pytest.raises(InputError, match=r"different protocols do not compare: a: TEST/ALL .*; b: TEST/A2G"):
        format_comparison({"a": metrics(), "b": metrics("A2G")})
    with pytest.raises(InputError, match="different view sources"):
        format_comparison({"a": metrics(), "b": metrics(views="predicted")})
