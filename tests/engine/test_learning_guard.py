"""The learning guard in a plain loop of torch: losses, the first step, features."""

import pytest
import torch
from torch import nn

from agreid_plugin.engine.observers import LearningGuard, NonFiniteLossError, WeightChangeCheck
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


class Model(nn.Module):
    """Returns its loss when it trains, as models of fast-reid do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, images: torch.Tensor, scale: float = 1.0) -> dict[str, torch.Tensor]:
        return {"loss_a": scale * self.layer(images).square().mean(), "loss_b": self.layer.weight.square().sum()}


@pytest.fixture
def training() -> tuple[Model, torch.optim.Optimizer, LearningGuard]:
    torch.manual_seed(0)
    network = Model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    paths = ["a.jpg", "b.jpg"]
    guard = LearningGuard(network, optimizer, images_and_paths=lambda images, **_: (images, paths), rate_key="LR")
    return network, optimizer, guard


def step(network: Model, optimizer: torch.optim.Optimizer, images: torch.Tensor, scale: float = 1.0) -> None:
    optimizer.zero_grad()
    sum(network(images, scale=scale).values()).backward()
    optimizer.step()


def test_the_first_step_is_judged_and_counted(training):
    network, optimizer, guard = training
    assert guard.changed is None
    step(network, optimizer, torch.ones(2, 3))
    assert guard.changed == 2
    optimizer.param_groups[0]["lr"] = 0.0  # later steps may change nothing
    step(network, optimizer, torch.ones(2, 3))


def test_a_step_that_changes_nothing_ends_the_run(training):
    network, optimizer, _ = training
    optimizer.param_groups[0]["lr"] = 0.0
    with pytest.raises(InputError, match=r"changed none of 2 weights: the learning rate is 0 \(LR\)"):
        step(network, optimizer, torch.ones(2, 3))


@pytest.mark.parametrize(
    ("images", "scale", "words"),
    [
        (torch.ones(2, 3), float("nan"), ("loss_a is nan (loss_b ", "2 images, all finite; weights finite", "lower")),
        (torch.ones(2, 3), float("inf"), ("loss_a is inf (loss_b ", "lower the learning rate")),
        (torch.tensor([[1.0] * 3, [float("inf")] * 3]), 1.0, ("2 images, 1 of them not finite, first b.jpg; ",)),
    ],
    ids=["nan", "infinite", "image"],
)
def test_a_loss_that_is_not_finite_is_found_before_the_step(training, images, scale, words):
    network, optimizer, guard = training
    guard.before_step(11)
    before = network.layer.weight.detach().clone()
    with pytest.raises(NonFiniteLossError, match=r"^iteration 12: loss_a is ") as caught:
        step(network, optimizer, images, scale)
    for each in words:
        assert each in str(caught.value)
    assert ("lower" in str(caught.value)) == bool(images.isfinite().all())
    assert torch.equal(network.layer.weight, before)


def test_losses_are_judged_once_and_only_in_training(training):
    network, _, guard = training
    assert guard.judge_losses() is None
    network(torch.ones(2, 3))
    assert guard.judge_losses().keys() == {"loss_a", "loss_b"}
    assert guard.judge_losses() is None
    network.eval()
    network(torch.ones(2, 3), scale=float("nan"))
    assert guard.judge_losses() is None


def test_features_have_to_be_alike_twice_in_a_row(training):
    *_, guard = training
    alike, different = torch.ones(4, 8), torch.eye(4, 8)
    for features in (alike, different, alike):
        guard.judge_features(features)
    with pytest.raises(InputError, match=r"features of 4 different images are all alike .* the model has collapsed"):
        guard.judge_features(alike)


def test_a_guard_that_has_stopped_judges_nothing(training):
    network, optimizer, guard = training
    guard.stop()
    step(network, optimizer, torch.ones(2, 3), scale=float("nan"))
    assert guard.inputs is None
    assert guard.changed is None
