"""`tools/bench hrmoe` measures what it says; how fast things are is not asserted."""

from dataclasses import replace

import pytest
import torch
from bench import hrmoe as bench_hrmoe
from conftest import assert_one_line
from tables import rows_of

from agreid_plugin.methods.tag_clip import HRMoEBlock

TASKS = ("experts alone", "image tower", "training step")
TINY = bench_hrmoe.ExpertSetting(model="tiny", top_k=5, batch=6, size=(48, 32), repeats=1, threads=1)


@pytest.mark.parametrize("top_k", [5, 2])
def test_experts_by_view_have_the_same_outputs_and_fewer_operations(bench, top_k):
    sizes = ["--model", "tiny", "--batch", 4, "--size", "48x32", "--repeats", 1]
    outcome = bench("hrmoe", *sizes, "--top-k", top_k)
    assert outcome.code == 0, outcome.err
    assert f"TAG-CLIP tiny, top {top_k} of 6 experts, 4 images of 48x32" in outcome.out
    rows = rows_of(outcome.out)
    for name in TASKS:
        assert float(rows[name][-1]) < 1e-3, name
    for name in TASKS[:2]:
        ours, everything = (float(number) for number in rows[name][8:10])
        assert 0 < ours < everything, name


@pytest.mark.parametrize("top_k", [5, 2])
def test_experts_have_operations_of_those_that_are_chosen(top_k):
    setting = replace(TINY, top_k=top_k)
    ours, everything = (bench_hrmoe._measure(setting, "experts alone", densely)[1] for densely in (False, True))
    mixing = 2 * 6 * 8 * 64 / 1e9  # of 8 tokens of width 64, which adding up what all six made is counted as
    assert ours == pytest.approx((everything - mixing) * top_k / 6)


def test_images_are_of_both_views_and_experts_differ():
    """Else there would be nothing to tell apart."""
    method = bench_hrmoe._method(TINY, densely=False)
    torch.manual_seed(3)
    with torch.no_grad():
        routed = method.image(bench_hrmoe._batch(TINY).images).routed
    assert all(set(one.views.tolist()) == {0, 1} for one in routed)
    blocks = [module for module in method.modules() if isinstance(module, HRMoEBlock)]
    assert len(blocks) == 2
    for block in blocks:
        assert not block.experts.c_fc_weight[0].equal(block.experts.c_fc_weight[1])


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--batch", 1, ["batch=1", "2 or more"]),
        ("--repeats", 0, ["repeats=0"]),
        ("--top-k", 6, ["top_k=6 should be at most the experts of a view, 5"]),
        ("--top-k", 0, ["top_k=0"]),
        ("--model", "huge", ["huge", "tiny, small, base"]),
    ],
)
def test_bad_options_of_the_hrmoe_bench_are_named(bench, option, value, words):
    sizes = ["--size", "48x32"] if option == "--model" else ["--model", "tiny", "--size", "48x32"]
    assert_one_line(bench("hrmoe", *sizes, option, value), *words, program="tools/bench")
