"""`tools/bench` measures what it says; how fast things are is not asserted."""

import importlib.util
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from bench import evaluation, hrmoe, index, rivals
from bench.__main__ import main
from conftest import ROOT, Outcome, assert_one_line
from fastreid.evaluation.rank import eval_market1501
from tables import rows_of

from agreid_plugin.errors import InputError
from agreid_plugin.methods.tag_clip import HRMoEBlock

TINY = ("--model", "tiny", "--batch", 4, "--rounds", 1)


@pytest.fixture
def bench(capsys):
    """Run a benchmark."""

    def run(*argv: object) -> Outcome:
        code = main([str(argument) for argument in argv])
        out, err = capsys.readouterr()
        return Outcome(code, out, err)

    return run


@pytest.fixture
def in_this_process(monkeypatch):
    """Take peaks of memory in this process, as starting others takes seconds: PLRM's test does."""
    monkeypatch.setattr(rivals, "in_process", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(index, "_in_process", lambda function, *arguments: function(*arguments))


def measured(outcome: Outcome) -> dict[tuple[str, str], list[str]]:
    """The cells of a comparison by task and way: CPU seconds, ratio, megabytes, GFLOPs, difference."""
    assert outcome.code == 0, outcome.err
    lines = [line.split("|")[1:-1] for line in outcome.out.splitlines() if line.startswith("|")]
    return {(task.strip(), way.strip()): [cell.strip() for cell in cells] for task, way, *cells in lines[2:]}


def test_rivals_are_called_in_turn():
    calls = []

    def call(name):
        calls.append(name)
        return len(calls)

    found = rivals.alternate({name: partial(call, name) for name in "AB"}, rounds=3)
    assert "".join(calls) == "ABABAB"
    assert found == {"A": [1, 3, 5], "B": [2, 4, 6]}


def test_ratios_are_of_rounds_and_not_of_medians():
    # Rounds of 2/1, 8/2, 6/3, 10/2, 9/3 are 2, 4, 2, 5, 3; the ratio of the medians would be 8/2.
    spread = rivals.compute_ratios([2, 8, 6, 10, 9], [1, 2, 3, 2, 3])
    assert spread == rivals.Spread(low=2, median=3, high=4)
    assert str(spread) == "3x (2-4)"


def test_time_is_of_this_process_and_of_its_children(monkeypatch):
    clock = iter([10.0, 14.0])
    children = iter([(1.0, 0.5), (2.0, 1.0)])

    def usage(whose):
        assert whose == rivals.resource.RUSAGE_CHILDREN
        user, system = next(children)
        return SimpleNamespace(ru_utime=user, ru_stime=system)

    monkeypatch.setattr(rivals.resource, "getrusage", usage)
    monkeypatch.setattr(rivals.time, "process_time", lambda: next(clock))
    assert rivals.time_call(lambda: None) == 4 + 1 + 0.5


def test_ways_are_compared_with_the_first(monkeypatch):
    calls = []

    def way(name, value):
        return lambda: calls.append(name) or torch.tensor([value])

    monkeypatch.setattr(rivals, "in_process", lambda *_: (7.0, 0.5))
    monkeypatch.setattr(rivals, "time_call", lambda run: (run() and None) or {"A": 2.0, "B": 6.0}[calls[-1]])
    lines = rivals.compare(
        {"task": lambda _: {"A": way("A", 1.0), "B": way("B", 1.5)}}, "sizes", 2, "a rival", images=1
    )
    out = list(lines)
    assert "".join(calls) == "ABABAB"  # a first round is not counted
    assert "sizes; against a rival\n2 rounds, 1 threads" in out[0]
    found = measured(Outcome(0, "\n".join(out), ""))
    assert found["task", "A"] == ["2", "1x", "7", "0.5", "0.0e+00"]
    assert found["task", "B"] == ["6", "3x (3-3)", "7", "0.5", "5.0e-01"]


def test_two_models_share_their_weights():
    first = torch.nn.Linear(3, 2)
    second = rivals.share(first)
    assert second is not first
    assert second.weight is first.weight


def test_visa_and_its_equations_have_the_same_outputs(bench, in_this_process):
    rows = measured(bench("visa", *TINY, "--size", "40x28"))  # norms over 2 magnify rounding
    tasks = ("forward", "training step", "graphs", "experts")
    assert list(rows) == [(task, way) for task in tasks for way in ("ours", "as printed")]
    for task in tasks:
        assert float(rows[task, "as printed"][-1]) < 1e-4, task
        if task != rivals.TRAINING:
            assert 0 < float(rows[task, "ours"][-2]) < float(rows[task, "as printed"][-2]), task


def test_cached_text_gives_the_same_features(bench, in_this_process):
    rows = measured(bench("svpr", *TINY, "--size", "48x32"))
    assert all(float(cells[-1]) < 1e-5 for cells in rows.values())
    every, batch, cached = (
        float(rows["features", f"text {way}"][-2]) for way in ("for every image", "once a batch", "cached")
    )
    assert every > batch > cached > 0


def test_experts_by_view_have_the_same_outputs_and_fewer_operations(bench, in_this_process):
    rows = measured(bench("hrmoe", *TINY, "--size", "48x32"))
    for task in ("experts", "image tower", "training step"):
        ours, everything = rows[task, "ours"], rows[task, "all experts"]
        assert float(everything[-1]) < 1e-3, task
        if task != rivals.TRAINING:
            assert 0 < float(ours[-2]) < float(everything[-2]), task
    # Five of six; adding up what all made, of 8 tokens of width 64, counts as well.
    ours, everything = (float(rows["experts", way][-2]) for way in ("ours", "all experts"))
    assert ours == pytest.approx((everything - 2 * 6 * 8 * 64 / 1e9) * 5 / 6, rel=1e-3)


def test_images_are_of_both_views_and_experts_differ():
    setting = rivals.Setting("tiny", 6, (48, 32))
    method = hrmoe._methods(setting)["ours"]
    torch.manual_seed(3)
    with torch.no_grad():
        routed = method.image(hrmoe._batch(setting).images).routed
    assert all(set(one.views.tolist()) == {0, 1} for one in routed)
    blocks = [module for module in method.modules() if isinstance(module, HRMoEBlock)]
    assert len(blocks) == 2
    for block in blocks:
        assert not block.experts.c_fc_weight[0].equal(block.experts.c_fc_weight[1])


def test_plrm_and_the_loop_have_the_same_outputs(bench):
    outcome = bench("plrm", "--images", 3, "--size", "50x37", "--rounds", 1)
    assert "3 images of 50x37" in outcome.out
    rows = measured(outcome)
    assert list(rows) == [("a batch", "ours"), ("a batch", "loop over patches")]
    assert float(rows["a batch", "loop over patches"][-1]) < 1e-5


def test_evaluators_rank_the_same_features():
    ways = evaluation.make_ranking(evaluation.Sizes(40, 400, 16), "fast-reid", eval_market1501)
    assert list(ways) == ["ours", "fast-reid", "matrix product"]
    assert float(ways["ours"]()) == pytest.approx(float(ways["fast-reid"]()), abs=1e-6)
    assert 0.02 < float(ways["ours"]()) < 0.2  # of features drawn at random


def test_the_rival_is_compiled(tmp_path):
    pytest.importorskip("Cython")
    sizes = evaluation.Sizes(40, 400, 16, evaluation.build_cython(str(tmp_path)))
    ways = evaluation._ranking(sizes)
    assert float(ways["ours"]()) == pytest.approx(float(ways["fast-reid, Cython"]()), abs=1e-6)


def test_a_rival_that_cannot_be_compiled_is_refused(bench, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert_one_line(bench("evaluation", "--queries", 4), "Cython", "pip install cython", program="tools/bench")


def test_seven_protocols_are_evaluated(bench, in_this_process, monkeypatch):
    names, evaluate_all = [], evaluation.evaluate_all

    def listed(*arguments):
        found = evaluate_all(*arguments)
        names.append(list(found))
        return found

    monkeypatch.setattr(evaluation, "evaluate_all", listed)
    rows = measured(bench("protocols", "--queries", 20, "--gallery", 200, "--width", 8, "--rounds", 2))
    assert [way for _, way in rows] == ["matrix product", "all protocols"]
    assert [len(each) for each in names] == [7, 7, 7, 7]  # the first, two rounds, memory
    assert all(name.startswith("CARGO/") for name in names[0])


def test_a_picture_of_each_size_is_measured(bench):
    outcome = bench("agsynth", "--people", 4, "--rounds", 1)
    assert outcome.code == 0, outcome.err
    assert [line.split(":")[0] for line in outcome.out.splitlines()[1:]] == ["128x64", "256x128"]
    assert outcome.out.startswith("48 pictures")


def test_vectors_are_people_and_queries_are_among_them(tmp_path):
    index.write_vectors(index.Sizes(count=410, width=32, queries=30), str(tmp_path))
    vectors, queries = np.load(tmp_path / "vectors.npy"), np.load(tmp_path / "queries.npy")
    assert (vectors.shape, queries.shape) == ((410, 32), (30, 32))
    vectors, queries = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (vectors, queries))
    best = np.argsort(-queries @ vectors.T, axis=1)[:, :10] // 20  # the person of each
    assert np.mean([len(set(people)) == 1 for people in best]) > 0.9


def test_a_row_for_each_index(bench, in_this_process):
    sizes = ("--vectors", 1000, "--width", 16, "--queries", 20, "--rounds", 1)
    outcome = bench("index", *sizes, "--kinds", "ivf", "--milvus", "flat")
    assert outcome.code == 0, outcome.err
    head, _, *rows = [(name, cells) for name, cells in rows_of(outcome.out).items()]
    assert [name for name, _ in rows] == ["faiss flat", "faiss ivf", "milvus-lite flat"]
    at = [cell.strip() for cell in head[1]].index("recall@10")
    recall = [float(cells[at]) for _, cells in rows]
    assert recall[0] == recall[2] == 1 >= recall[1] > 0.8
    assert [cell.strip() for cell in rows[0][1][:3]] == ["1x (1-1)"] * 3


def test_kinds_are_checked_before_anything_is_made():
    with pytest.raises(InputError, match="index kind 'tree' unknown"):
        list(index.bench_index(index.Sizes(10, 4, 2), ["tree"], [], 1))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["visa", "--batch", 1], ["--batch is 1", "2 or more"]),
        (["hrmoe", "--rounds", 0], ["--rounds is 0"]),
        (["svpr", "--size", "256"], ["'256'", "HEIGHTxWIDTH"]),
        (["visa", "--model", "huge"], ["huge", "tiny, small, base"]),
        (["index", "--vectors", 0], ["--vectors is 0"]),
        (["evaluation", "--queries", -1], ["--queries is -1"]),
        (["plrm", "--size", "8x8"], ["n=16 is larger than the images of 8 x 8"]),
        (["vis"], ["did you mean visa?"]),
    ],
)
def test_bad_options_are_named(bench, argv, words):
    assert_one_line(bench(*argv), *words, program="tools/bench")


def test_a_folder_is_the_command():
    outcome = subprocess.run(
        [sys.executable, "tools/bench", "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert outcome.returncode == 0, outcome.stderr
    assert "tools/run python tools/bench evaluation" in outcome.stdout
