"""Counting what experts are given, by hand and in the three methods that have any."""

import math

import pytest
import torch
from small_svpr import batch as svpr_batch
from small_svpr import small_svpr
from torch import nn

from agreid_plugin.methods.svpr.asmoe import AttributeExperts
from agreid_plugin.methods.tag_clip.hrmoe import Experts, HRMoEBlock
from agreid_plugin.methods.visa.etgm import ETGM
from agreid_plugin.nn.expert_usage import (
    RoutingRecord,
    Usage,
    UsageCounter,
    find_faults,
    flatten_shares,
    group_name,
    merge_usage,
    summarize_shares,
)
from agreid_plugin.nn.experts import Router

WIDTH = 8


def counted(model: nn.Module, *arguments: torch.Tensor) -> dict[str, Usage]:
    counter = UsageCounter(model)
    assert counter.start() > 0
    model(*arguments)
    counter.stop()
    return counter.take()


def by_hand() -> Usage:
    """Two groups of three experts, of which two are chosen; nothing is in the second group."""
    weights = torch.tensor([[0.75, 0.25, 0.0], [0.5, 0.5, 0.0], [0.0, 0.4, 0.6]])
    return Usage.count(RoutingRecord(weights, 2, (range(3), range(3)), torch.tensor([0, 0, 0])))


def test_shares_by_hand():
    (aerial, routed, shares), (ground, none, _) = by_hand().by_group()
    assert (aerial, routed, ground, none) == ("aerial", 3, "ground", 0)
    assert list(shares.values()) == pytest.approx([2 / 3, 1.0, 1 / 3])
    assert flatten_shares({"router": by_hand()}) == {f"router/aerial/{expert}": shares[expert] for expert in range(3)}


def test_where_all_are_chosen_shares_are_of_the_weights():
    weights = torch.tensor([[0.75, 0.25], [0.25, 0.75], [0.5, 0.5], [0.9, 0.1]])
    usage = Usage.count(RoutingRecord(weights, 2, (range(2),)))
    assert flatten_shares({"gate": usage}) == pytest.approx({"gate/0": 0.6, "gate/1": 0.4})


def test_what_was_never_chosen_is_told():
    idle = Usage.count(RoutingRecord(torch.tensor([[1.0, 0.0, 0.0]] * 4), 1, (range(3),)))
    assert find_faults({"a": by_hand(), "b": idle}) == [
        "a/ground: the group was never chosen, its experts learn nothing",
        "b: of 3 experts, 1, 2 were never chosen in 4 choices, all images are sent alike (0.000 nats of information)",
    ]


def test_information_by_hand():
    """Mean weights 1/2 and 1/2 have an entropy of log 2, an item's 0 or log 2."""
    apart, alike = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([[0.5, 0.5, 0.0]] * 2)
    usage = Usage.count(RoutingRecord(torch.cat([apart, alike]), 2, (range(3),) * 2, torch.tensor([0, 0, 1, 1])))
    assert [usage.information(group) for group in range(2)] == pytest.approx([math.log(2), 0.0])
    assert (usage + usage).information(0) == pytest.approx(math.log(2))
    (fault,) = [line for line in find_faults({"a": usage}) if "alike" in line]
    assert fault.startswith("a/ground")


def test_where_all_are_chosen_no_information_is_asked_for():
    assert find_faults({"a": Usage.count(RoutingRecord(torch.tensor([[0.5, 0.5]] * 4), 2, (range(2),)))}) == []


def test_shares_in_one_line():
    one = by_hand()
    assert summarize_shares({"a": one}) == "a/aerial 33 - 100, a/ground 0 - 0"
    many = {name: Usage.count(RoutingRecord(torch.tensor([[0.7, 0.3]]), 2, (range(2),))) for name in "bcd"}
    assert summarize_shares({"a": one, **many}) == "5 groups, least 0 (a/ground), most 100 (a/aerial)"


def test_processes_are_added_up():
    both = merge_usage([{"a": by_hand()}, {"a": by_hand(), "b": by_hand()}])
    assert both["a"].routed.tolist() == [6, 0]
    assert both["b"].chosen.tolist() == by_hand().chosen.tolist()


def test_groups_are_called_by_their_views():
    assert [group_name(0, 1), group_name(1, 2), group_name(2, 3)] == ["", "ground", "2"]


def test_routers_of_visa_count_images():
    torch.manual_seed(0)
    model, views = ETGM(WIDTH, heads=2, experts=3, top_k=2, tokens=2), torch.tensor([0, 1, 1, 0, 1])
    identity, view = torch.randn(2, 5, WIDTH)
    usage = counted(model, identity, view, views)
    assert set(usage) == {"shared_router", "view_router"}
    queries = model(identity, view, views)
    for group, mine in enumerate([views == 0, views == 1]):
        expected = torch.bincount(queries.by_view.experts[mine].flatten(), minlength=3)
        assert usage["view_router"].chosen[group].tolist() == expected.tolist()
    assert usage["shared_router"].chosen[0].tolist() == queries.shared.experts.flatten().bincount(minlength=3).tolist()
    assert usage["view_router"].weights.sum().item() == pytest.approx(5)


class Block(nn.Module):
    """A block of CLIP's names."""

    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.mlp = nn.Module()
        self.mlp.c_fc, self.mlp.gelu, self.mlp.c_proj = nn.Linear(WIDTH, 8), nn.GELU(), nn.Linear(8, WIDTH)


def test_blocks_of_tag_clip_count_tokens_by_the_view_their_image_was_sent_to():
    torch.manual_seed(0)
    block = HRMoEBlock(Block(), experts=4, top_k=2, noise=0.0, sample="argmax")
    nn.init.normal_(block.image_router.weight)
    tokens = torch.randn(6, 5, WIDTH)
    usage = counted(block, tokens)["experts"]
    routed = block.run_with_routing(tokens)[1]
    assert 0 < routed.views.sum() < 6
    for view in range(2):
        chosen = (routed.weights[routed.views == view] > 0).sum(dim=(0, 1))
        assert usage.chosen[view].tolist() == chosen.tolist()
    assert usage.routed.tolist() == [5 * int((routed.views == view).sum()) for view in range(2)]
    assert [sorted(shares) for *_, shares in usage.by_group()] == [[0, 1, 2], [1, 2, 3]]
    assert isinstance(block.experts, Experts)


@pytest.mark.parametrize("top_k", [None, 1])
def test_experts_of_svpr_count_attributes(top_k):
    torch.manual_seed(0)
    experts, vectors = AttributeExperts(WIDTH, 3, top_k), torch.randn(4, 2, WIDTH)
    (usage,) = counted(experts, vectors).values()
    gates = experts(vectors)[1].softmax(dim=-1).flatten(0, 1)
    assert usage.routed.item() == 8
    if top_k is None:
        torch.testing.assert_close(usage.weights[0], gates.sum(0).double())
    else:
        assert usage.chosen[0].tolist() == gates.argmax(-1).bincount(minlength=3).tolist()


def test_counting_changes_no_number():
    batch, method = svpr_batch(), small_svpr().train()
    outputs = []
    for counts in (False, True):
        counter = UsageCounter(method)
        if counts:
            assert counter.start() == 1
        torch.manual_seed(0)
        outputs.append(method.losses(method(batch), batch))
        counter.stop()
    assert outputs[0] == outputs[1]


def test_evaluation_is_not_counted_and_counting_can_end():
    router = Router(WIDTH, 3, 1)
    counter = UsageCounter(router)
    counter.start()
    router.eval()(torch.randn(4, WIDTH))
    assert counter.take() == {}
    router.train()(torch.randn(4, WIDTH))
    assert counter.take()[""].routed.item() == 4
    counter.stop()
    router(torch.randn(4, WIDTH))
    assert counter.take() == {}


def test_evaluation_is_counted_alone_if_asked():
    router = Router(WIDTH, 3, 1)
    counter = UsageCounter(router, training=False)
    counter.start()
    router(torch.randn(4, WIDTH))
    assert counter.take() == {}
    router.eval()(torch.randn(3, WIDTH))
    assert counter.take()[""].routed.item() == 3
