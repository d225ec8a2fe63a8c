"""Learning rates, settings of parameters and optimizer steps under mmengine, against fast-reid's."""

import math

import pytest
import torch
from fastreid.solver.build import get_default_optimizer_params, maybe_add_gradient_clipping
from mmengine.config import ConfigDict
from mmengine.optim import build_optim_wrapper
from mmengine.registry import OPTIM_WRAPPERS, PARAM_SCHEDULERS
from torch import nn
from torch.optim import SGD

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.fastreid import components  # noqa: F401 - declares the keys
from agreid_plugin.hosts.fastreid.config import load_config
from agreid_plugin.hosts.mmengine import optimizers, schedules
from agreid_plugin.hosts.mmengine.optimizers import OptimWrapperConstructor, clip_each


@pytest.fixture
def said(monkeypatch) -> list[str]:
    """What is logged."""
    lines = []
    for module in (optimizers, schedules):
        monkeypatch.setattr(module, "print_log", lambda line, *_: lines.append(line))
    return lines


def rates(epoch_length, end, bases=(1.0,), **options):
    """Return the rates of each group at every iteration of a run."""
    values = [nn.Parameter(torch.zeros(1)) for _ in bases]
    optimizer = SGD([{"params": [value], "lr": base} for value, base in zip(values, bases, strict=True)], lr=1.0)
    config = {"convert_to_iter_based": True, "end": end, **options}
    scheduler = PARAM_SCHEDULERS.build(config, default_args={"optimizer": optimizer, "epoch_length": epoch_length})
    found = []
    for _ in range(end * epoch_length):
        found.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    return found


def single(*args, **kwargs):
    return [rate for (rate,) in rates(*args, **kwargs)]


def test_warm_up_reaches_the_whole_rate_at_its_last_iteration():
    found = single(
        2, 6, type="agreid_plugin.WarmupMultiStepLR", warmup_iters=4, warmup_factor=0.2, milestones=[4], gamma=0.5
    )
    assert found == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5])


def test_warm_up_in_epochs_is_as_many_iterations():
    options = {"type": "agreid_plugin.WarmupMultiStepLR", "warmup_factor": 0.1, "milestones": [3, 5]}
    assert single(3, 6, warmup_epochs=2, **options) == single(3, 6, warmup_iters=6, **options)


def test_the_epoch_in_which_warm_up_ends_has_the_whole_rate_to_its_end():
    found = single(2, 5, type="agreid_plugin.WarmupCosineLR", warmup_iters=3, warmup_factor=0.0, eta_min=0.1)
    epochs = [0.1 + 0.9 * (1 + math.cos(math.pi * k / 3)) / 2 for k in range(4)]  # K = 5 - ceil(3 / 2), k from epoch 1
    expected = [0, 1 / 3, 2 / 3, 1, *(epochs[1],) * 2, *(epochs[2],) * 2, *(epochs[3],) * 2]
    assert found == pytest.approx(expected)
    assert found[-1] == pytest.approx(0.1)


def test_a_cosine_by_iteration_ends_at_a_share_of_each_rate():
    options = {"type": "agreid_plugin.WarmupCosineLR", "warmup_iters": 1, "every": "iteration", "eta_min_ratio": 0.2}
    found = rates(2, 3, bases=(1.0, 10.0), **options)
    factors = [0.1, *(0.2 + 0.8 * (1 + math.cos(math.pi * k / 5)) / 2 for k in range(5))]  # K = 6 - 1
    assert found == [pytest.approx([factor, 10 * factor]) for factor in factors]


def test_without_warm_up_the_cosine_starts_at_once():
    found = single(1, 4, type="agreid_plugin.WarmupCosineLR")
    assert found == pytest.approx([(1 + math.cos(math.pi * k / 4)) / 2 for k in range(4)])


def started(end: int):
    """A cosine of so many epochs of two iterations, and its optimizer."""
    config = {"type": "agreid_plugin.WarmupCosineLR", "convert_to_iter_based": True, "end": end, "warmup_iters": 3}
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    built = PARAM_SCHEDULERS.build(config, default_args={"optimizer": optimizer, "epoch_length": 2})
    return optimizer, built


def stopped(path, end: int, steps: int) -> None:
    """Keep the states of such a schedule after some iterations."""
    optimizer, scheduler = started(end)
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
    torch.save([optimizer.state_dict(), scheduler.state_dict()], path)


def resumed_rates(path, end: int, steps: int) -> list[float]:
    """Return the rates of the next iterations after what was kept."""
    parts, found = started(end), []
    for part, state in zip(parts, torch.load(path), strict=True):
        part.load_state_dict(state)
    for _ in range(steps):
        found.append(parts[0].param_groups[0]["lr"])
        for part in parts:
            part.step()
    return found


def cosine(end: int) -> list[float]:
    return single(2, end, type="agreid_plugin.WarmupCosineLR", warmup_iters=3)


def test_a_resumed_schedule_goes_on(tmp_path, said):
    stopped(tmp_path / "state.pth", end=5, steps=5)
    assert resumed_rates(tmp_path / "state.pth", end=5, steps=2) == cosine(5)[5:7]
    assert not said


@pytest.mark.parametrize("steps", [7, 10])  # within the shorter run, and at its end
def test_a_longer_schedule_is_told_and_holds_from_the_first_iteration(tmp_path, said, steps):
    stopped(tmp_path / "state.pth", end=5, steps=steps)
    assert resumed_rates(tmp_path / "state.pth", end=8, steps=2) == cosine(8)[steps : steps + 2]
    assert said == [
        "resumed with another schedule (epochs 8 in place of 5): the rate is what it says from here on",
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"type": "agreid_plugin.WarmupMultiStepLR", "milestones": [3, 3]}, "milestones=.* should increase"),
        ({"type": "agreid_plugin.WarmupCosineLR", "every": "epochs"}, "every 'epochs' unknown .did you mean epoch"),
        ({"type": "agreid_plugin.WarmupCosineLR", "warmup_iters": 8}, "the cosine has nothing left: of 4 epochs of 2"),
        ({"type": "agreid_plugin.WarmupCosineLR", "warmup_iters": 1, "warmup_epochs": 1}, "not both"),
        ({"type": "agreid_plugin.WarmupCosineLR", "eta_min": 1e-5, "eta_min_ratio": 0.1}, "not both"),
        ({"type": "agreid_plugin.WarmupCosineLR", "warmup_factor": 2}, "warmup_factor=2 should be between 0 and 1"),
        ({"type": "agreid_plugin.WarmupCosineLR", "convert_to_iter_based": False}, "write convert_to_iter_based=True"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(options, said):
    with pytest.raises(InputError, match=said):
        single(2, 4, **options)


class Small(nn.Module):
    """Parameters of every kind that the rules tell apart."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.BatchNorm1d(4))
        self.local = nn.Linear(4, 4)
        self.attention = nn.MultiheadAttention(4, 2)
        self.scale = nn.Parameter(torch.zeros(()))
        self.twin = self.local  # a parameter that has two names
        self.body[2].bias.requires_grad_(False)


def settings(optimizer, model):
    """Return rate and weight decay of every parameter in an optimizer by name."""
    names = {id(value): name for name, value in model.named_parameters()}
    return {
        names[id(value)]: (pytest.approx(group["lr"]), pytest.approx(group["weight_decay"]))
        for group in optimizer.param_groups
        for value in group["params"]
    }


def constructed(model, **paramwise):
    config = {
        "type": "OptimWrapper",
        "constructor": "agreid_plugin.OptimWrapperConstructor",
        "optimizer": {"type": "SGD", "lr": 0.1, "weight_decay": 0.01},
        "paramwise_cfg": paramwise,
    }
    return build_optim_wrapper(model, ConfigDict(config)).optimizer


def test_parameters_have_the_settings_of_fast_reid():
    model = Small()
    ours = constructed(model, bias_lr_mult=2.0, bias_decay_mult=3.0, norm_decay_mult=5.0)
    params = get_default_optimizer_params(
        model, base_lr=0.1, weight_decay=0.01, weight_decay_norm=0.05, bias_lr_factor=2.0, weight_decay_bias=0.03
    )
    assert settings(ours, model) == settings(SGD(params, lr=0.1), model)
    assert len(ours.param_groups) == 3
    assert "body.2.bias" not in settings(ours, model)


def test_modules_learn_at_a_multiple_and_only_matrices_decay():
    model = Small()
    found = settings(constructed(model, lr_mult={"local": 10.0, "attention.out_proj": 2.0}, decay_vectors=False), model)
    assert found["local.weight"] == (1.0, 0.01)
    assert found["local.bias"] == (1.0, 0.0)
    assert found["attention.in_proj_weight"] == (0.1, 0.01)
    assert found["attention.in_proj_bias"] == (0.1, 0.0)
    assert found["attention.out_proj.weight"] == (0.2, 0.01)
    assert found["scale"] == (0.1, 0.0)


def test_a_setting_that_is_not_ours_is_refused():
    with pytest.raises(InputError, match=r"paramwise_cfg .norm_decay_mul. unknown .did you mean norm_decay_mult"):
        OptimWrapperConstructor({"optimizer": {"lr": 0.1, "weight_decay": 0.1}}, {"norm_decay_mul": 0.0})


def test_what_the_settings_come_to_is_told(said):
    constructed(Small(), lr_mult={"image_local": 10.0})
    assert said == [
        "optimizer: 12 parameters in 1 groups, 1 frozen",
        "paramwise_cfg.lr_mult: the model has no image_local",
    ]


def test_each_gradient_is_clipped_alone_as_in_fast_reid(tmp_path):
    torch.manual_seed(0)
    weights = [torch.randn(3), torch.randn(2, 2), torch.randn(1)]
    gradients = [torch.tensor([30.0, 0, 40]), torch.full((2, 2), 0.1), torch.tensor([6.0])]
    (tmp_path / "config.yml").write_text("SOLVER: {CLIP_GRADIENTS: {ENABLED: True}}")
    cfg = load_config(tmp_path / "config.yml")

    theirs = [nn.Parameter(weight.clone()) for weight in weights]
    ours = [nn.Parameter(weight.clone()) for weight in weights]
    for values in (theirs, ours):
        for value, gradient in zip(values, gradients, strict=True):
            value.grad = gradient.clone()
    maybe_add_gradient_clipping(cfg, SGD)(theirs, lr=0.1).step()
    config = {"type": "agreid_plugin.OptimWrapper", "clip_grad": {"type": "each", "max_norm": 5.0}}
    OPTIM_WRAPPERS.build(config, default_args={"optimizer": SGD(ours, lr=0.1)}).step()
    for their, our in zip(theirs, ours, strict=True):
        assert torch.equal(their, our)
    assert torch.allclose(ours[0] - weights[0], -0.1 * torch.tensor([3.0, 0, 4]), atol=1e-5)
    assert config["clip_grad"]["type"] == "each"


def test_clipping_tells_the_largest_norm():
    values = [nn.Parameter(torch.zeros(2)) for _ in range(2)]
    values[0].grad, values[1].grad = torch.tensor([3.0, 4.0]), torch.tensor([0.0, 1.0])
    assert float(clip_each(values, 100.0)) == pytest.approx(5.0)


def mixed(model, **options):
    config = {"type": "agreid_plugin.AmpOptimWrapper", **options}
    return OPTIM_WRAPPERS.build(config, default_args={"optimizer": SGD(model.parameters(), lr=0.1)})


def step(wrapper, model, inputs):
    """Take one step; returns the type of the numbers that the forward pass gave."""
    with wrapper.optim_context(model):
        outputs = model(inputs)
    wrapper.update_params(outputs.float().square().sum())
    return outputs.dtype


def test_mixed_precision_is_off_on_a_cpu_and_steps_are_plain_ones(said):
    torch.manual_seed(0)
    model, inputs = nn.Linear(3, 2), torch.randn(4, 3)
    plain = nn.Linear(3, 2)
    plain.load_state_dict(model.state_dict())
    clip = {"type": "each", "max_norm": 0.5}
    wrapper = mixed(model, clip_grad=clip, loss_scale="dynamic", dtype="float16", accumulative_counts=1)
    assert said == ["mixed precision is off: the model is on a CPU (optim_wrapper.on_cpu=True forces it)"]
    reference = OPTIM_WRAPPERS.build(
        {"type": "agreid_plugin.OptimWrapper", "clip_grad": clip},
        default_args={"optimizer": SGD(plain.parameters(), lr=0.1)},
    )
    assert step(wrapper, model, inputs) == step(reference, plain, inputs) == torch.float32
    assert torch.equal(model.weight, plain.weight)


def test_mixed_precision_can_be_forced_on_a_cpu(said):
    model = nn.Linear(3, 2)
    before = model.weight.detach().clone()
    assert step(mixed(model, on_cpu=True), model, torch.ones(1, 3)) == torch.bfloat16
    assert not said
    assert not torch.equal(model.weight, before)


def test_checkpoints_with_and_without_a_loss_scale_are_taken():
    wrapper = mixed(nn.Linear(3, 2))
    state = wrapper.state_dict()
    assert state["loss_scaler"] == {}
    wrapper.load_state_dict(state)
    wrapper.load_state_dict(state | {"loss_scaler": {"scale": 1024.0, "growth_factor": 2.0}})  # of a GPU
    assert "loss_scaler" in state  # the checkpoint's own dictionary is left whole
