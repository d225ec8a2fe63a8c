"""`tools/bench` measures what it says; how fast things are is not asserted."""

import re

import pytest
from conftest import assert_one_line
from tables import rows_of


def test_evaluators_rank_the_same_features(bench):
    sizes = ["--queries", 40, "--gallery", 400, "--width", 16, "--python-queries", 40]
    outcome = bench("evaluation", *sizes)
    assert outcome.code == 0, outcome.err
    _, _, *rows = rows_of(outcome.out).items()  # below the head and its line
    assert [name.partition(",")[0] for name, _ in rows][:2] == ["ours", "fast-reid"]
    assert len({cells[-1].strip() for _, cells in rows}) == 1  # one mAP


def test_agsynth_speed_of_both_sizes(bench):
    outcome = bench("agsynth", "--images", 4, "--workers", 1)
    assert re.fullmatch(r"128x64: \d+ images/s\n256x128: \d+ images/s\n", outcome.out)


def test_visa_and_its_equations_have_the_same_outputs(bench):
    sizes = ["--model", "tiny", "--batch", 4, "--size", "40x28", "--repeats", 1]  # norms over 2 magnify rounding
    outcome = bench("visa", *sizes, "--variant", "released")
    assert outcome.code == 0, outcome.err
    rows = rows_of(outcome.out)
    for name in ("forward", "training step", "graphs alone", "experts alone"):
        assert float(rows[name][-1]) < 1e-4, name
    for name in ("encoder", "experts and routers", "graphs", "fusion"):
        ours, printed = (float(number) for number in rows[name][1:3])
        assert 0 < ours <= printed, name
    parameters = {name: int(rows[name][0].replace(",", "")) for name in ("encoder", "backbone", "heads", "total")}
    assert parameters["encoder"] < parameters["backbone"]
    assert parameters["total"] == parameters["backbone"] + parameters["heads"]


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--batch", 1, ["batch=1", "2 or more"]),
        ("--repeats", 0, ["repeats=0"]),
        ("--size", "256", ["'256'", "HEIGHTxWIDTH"]),
        ("--model", "huge", ["huge", "tiny, small, base"]),
    ],
)
def test_bad_options_of_the_visa_bench_are_named(bench, option, value, words):
    assert_one_line(bench("visa", option, value), *words, program="tools/bench")


def test_plrm_and_the_loop_have_the_same_outputs(bench):
    outcome = bench("plrm", "--images", 3, "--size", "50x37", "--repeats", 1)
    assert outcome.code == 0, outcome.err
    assert "3 images of 50x37" in outcome.out
    rows = rows_of(outcome.out)
    ours, loop = (
        [float(cell.strip().rstrip("x").replace(",", "")) for cell in rows[name]]
        for name in ("ours", "loop over patches")
    )
    assert len(ours) == len(loop) == 5
    assert ours[1] == ours[3] == 1  # the others are told in times of it
    assert float(re.search(r"largest difference of a pixel: (\S+),", outcome.out)[1]) < 1e-5


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--images", 0, ["images=0"]),
        ("--repeats", -1, ["repeats=-1"]),
        ("--size", "8x8", ["n=16 is larger than the images of 8 x 8"]),
    ],
)
def test_bad_options_of_the_plrm_bench_are_named(bench, option, value, words):
    assert_one_line(bench("plrm", option, value), *words, program="tools/bench")


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_cached_text_gives_the_same_features(bench, variant):
    sizes = ["--model", "tiny", "--batch", 3, "--size", "48x32", "--repeats", 1]
    outcome = bench("svpr", *sizes, "--variant", variant)
    assert outcome.code == 0, outcome.err
    rows = rows_of(outcome.out)
    ways = ("text for every image", "text once a batch", "text cached")
    assert all(float(rows[way][-1]) < 1e-5 for way in ways)
    every, batch, cached = (float(rows[way][-2]) for way in ways)  # operations
    assert every > batch > cached > 0


def test_bad_options_of_the_svpr_bench_are_named(bench):
    assert_one_line(bench("svpr", "--batch", 1), "batch=1", "2 or more", program="tools/bench")
