"""A run's numbers beside a paper's: which rows come along, and what is marked as not comparable."""

from pathlib import Path

import pytest

from agreid_plugin.evaluation import NUMBERS, Metrics
from agreid_plugin.evaluation.papers import compare_with_paper, find_published_counts, load_paper

PROJECTS = Path(__file__).parents[2] / "projects"
CARD = {"synthetic": [], "setup": {"architecture": "ViSA", "variant": "paper", "input": [256, 128]}}
COUNTS = {"CARGO/A2G": (94, 84, 18444), "CARGO/AG-both": (160, 152, 50712), "CARGO/G2A": (100, 34, 32268)}


def entry(protocol: str, **changes) -> Metrics:
    """Results on the real CARGO, by its counts."""
    queries, skipped, gallery = COUNTS.get(protocol, (4, 0, 16))
    values = dict.fromkeys(NUMBERS, 12.342)
    given = {"queries": queries, "skipped": {"no match": skipped}, "gallery": gallery, "views": "given"}
    return Metrics(protocol, "a source", values, **{**given, **changes})


def lines_of(text: str, method: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"| {method} ")]


@pytest.fixture(scope="module")
def visa():
    return load_paper(PROJECTS / "ViSA")


def test_rows_of_another_protocol_in_the_same_column_are_marked(visa):
    text = compare_with_paper(visa, [entry("CARGO/A2G")], CARD)
    ours, theirs = lines_of(text, "this run"), lines_of(text, "ViSA")
    assert len(ours) == 1
    assert ours[0].count(" 12.34 ") == 2  # Rank-1 and mAP
    assert "71.28 | 69.00 |                    |" in theirs[0]
    assert "48.12" in lines_of(text, "VDT")[0]
    assert "CARGO/AG-both" in lines_of(text, "VDT")[0]
    assert "unknown" in lines_of(text, "SeCap")[0]
    assert "[1] VDT's task" in text
    assert "Table 2: modules that are switched on" in text
    assert "     -    | 69.00" in theirs[1], "Table 5 has no Rank-1"
    assert "64.10" not in text, "a number under ALL"


def test_the_same_column_is_marked_the_other_way_round_under_the_other_protocol(visa):
    text = compare_with_paper(visa, [entry("CARGO/AG-both")], CARD)
    assert "CARGO/A2G" in lines_of(text, "ViSA")[0]
    assert "CARGO" not in lines_of(text, "VDT")[0]


def test_a_run_in_the_papers_setting_on_the_published_data_has_no_warning(visa):
    text = compare_with_paper(visa, [entry("CARGO/A2G"), entry("CARGO/AG-both")], CARD)
    assert text.splitlines()[1] == ""
    assert "not " not in text.partition("| CARGO/A2G")[0]


def test_protocols_without_a_published_number_are_named(visa):
    text = compare_with_paper(visa, [entry("CARGO/G2A")], CARD)
    assert text.splitlines()[-1] == "no number in this paper: CARGO/G2A"
    assert "|" not in text


def test_ag_synth_is_told_in_one_line_without_a_table(visa):
    small = {**CARD, "synthetic": ["CARGO"]}
    unlike = "not comparable: CARGO of this run is AG-Synth, which no paper has"
    made = entry("CARGO/A2G", queries=4, skipped={}, gallery=16)
    assert compare_with_paper(visa, [made], small) == unlike
    text = compare_with_paper(visa, [made, entry("AG-ReID/A2G")], small)
    assert unlike in text.splitlines()
    assert "CARGO/A2G" not in text


def test_another_copy_is_told_by_its_counts(visa):
    text = compare_with_paper(visa, [entry("CARGO/A2G", gallery=18000), entry("CARGO/AG-both")])
    line = next(line for line in text.splitlines() if line.startswith("not comparable"))
    assert line.endswith("CARGO/A2G has 18,000 gallery images (18,444 published)")


@pytest.mark.parametrize(
    ("run", "setup", "said"),
    [
        ({"views": "predicted"}, {}, "views predicted (there given)"),
        ({"views": ""}, {}, "views not used (there given)"),
        ({}, {"input": [128, 64]}, "images of 128x64 (there 256x128)"),
        ({}, {"variant": "released"}, "the released variant"),
        ({"distance": "cosine, re-ranked (k1 20, k2 6, weight 0.3)"}, {}, "distances re-ranked"),
    ],
)
def test_another_setting_is_told(visa, run, setup, said):
    text = compare_with_paper(visa, [entry("CARGO/A2G", **run)], {**CARD, "setup": {**CARD["setup"], **setup}})
    assert f"not ViSA's setting: {said}" in text.splitlines()


def test_numbers_that_others_cite_are_said_to_be():
    text = compare_with_paper(load_paper(PROJECTS / "VDT"), [entry("CARGO/AG-both", views="")])
    assert "numbers as other papers print them" in text
    assert [line.split("|")[2].strip() for line in lines_of(text, "VDT")] == [
        "ViSA, Table 1, A<->G",
        "SVPR-ReID, Table 3, CARGO A<->G",
        "VIF-AGReID, Table 1, A<->G",
    ]


def test_published_counts_are_known_for_images_and_sentences():
    assert find_published_counts("CARGO/A2G") == {"queries": 178, "gallery": 18444}
    assert find_published_counts("TAG-PEDES/T2I") == {"queries": 16504, "gallery": 8252}
    assert find_published_counts("CUHK-PEDES/T2I") == {"gallery": 3074}
    assert find_published_counts("CP2108/ALL") == {}
    assert find_published_counts("Market1501/ALL") == {}
