"""Experts that all run give what the fast form gives."""

import pytest
import torch
from torch import nn

from agreid_plugin.nn.experts import DenseTokenExperts, TokenExperts, make_traceable


@pytest.fixture
def bank() -> TokenExperts:
    torch.manual_seed(0)
    bank = TokenExperts(experts=5, tokens=3, width=8, heads=2).double()
    for parameter in bank.parameters():
        nn.init.normal_(parameter, std=0.5)
    return bank


@pytest.mark.parametrize("experts", [[0], [4, 4, 1], [3, 0, 1, 2, 4, 0, 0]])
def test_outputs_are_those_of_the_fast_form(bank, experts):
    vectors, experts = torch.randn(len(experts), 8, dtype=torch.double), torch.tensor(experts)
    torch.testing.assert_close(DenseTokenExperts(bank)(vectors, experts), bank(vectors, experts))


class Idle(TokenExperts):
    """Another kind, with a form of its own."""

    def traceable(self) -> nn.Module:
        return nn.Identity()


def test_modules_are_replaced_by_their_traceable_form_wherever_they_are(bank):
    model = nn.Sequential(nn.Linear(2, 2), nn.ModuleDict({"inner": bank}), Idle(experts=2, tokens=1, width=4, heads=1))
    linear = model[0]
    make_traceable(model)
    assert isinstance(model[1]["inner"], DenseTokenExperts)
    assert model[1]["inner"].bank is bank
    assert type(model[2]) is nn.Identity
    assert model[0] is linear
