"""Whether training changes weights, and what is said of it if it does not."""

import pytest
import torch
from torch import nn

from agreid_plugin.engine.guard import WeightChangeCheck
from agreid_plugin.errors import InputError


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))


def check(model: nn.Module, lr: float = 0.1, parameters=None, **names: str) -> WeightChangeCheck:
    optimizer = torch.optim.SGD(model.parameters() if parameters is None else parameters, lr=lr)
    found = WeightChangeCheck(model, optimizer, **names)
    found.keep()
    return found


def test_weights_that_changed_are_counted(model):
    found = check(model)
    assert found.count_changed() == 0
    with torch.no_grad():
        model[0].weight[0, 0] += 1
        model[1].bias += 1
    assert found.count_changed() == 2
    found.keep()
    assert found.count_changed() == 0


def test_frozen_weights_do_not_count(model):
    model[0].requires_grad_(False)
    found = check(model)
    with torch.no_grad():
        model[0].weight += 1
    assert found.count_changed() == 0


def test_a_change_is_required(model):
    found = check(model)
    with pytest.raises(InputError, match="first optimizer step changed none of 4 weights: no weight got a gradient"):
        found.require_change()
    with torch.no_grad():
        model[1].bias += 1
    assert found.require_change() == 1


def test_the_reason_for_no_change_is_told(model):
    assert check(model).find_reason() == "no weight got a gradient"
    assert check(model, lr=0.0).find_reason() == "the learning rate is 0"
    assert check(model, lr=0.0, rate_key="SOLVER.BASE_LR").find_reason() == "the learning rate is 0 (SOLVER.BASE_LR)"
    others = [value.detach().clone().requires_grad_() for value in model.parameters()]
    assert check(model, parameters=others).find_reason() == "the optimizer holds other tensors than the model's"
    assert (
        check(model, parameters=others, other_tensors="a flat buffer").find_reason().endswith("model's (a flat buffer)")
    )
    (model(torch.ones(1, 3)) * 0).sum().backward()
    assert check(model).find_reason() == "every gradient is 0"
    model(torch.ones(1, 3)).sum().backward()
    assert check(model).find_reason() == "the gradients are there; look at the optimizer"
    model.requires_grad_(False)
    assert check(model).find_reason() == "all of them are frozen"


def test_rates_are_those_of_all_groups(model):
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[1].parameters()}]
    found = check(model, parameters=groups)
    assert found.rates() == {0.0, 0.1}
    assert found.find_reason() == "no weight got a gradient"
