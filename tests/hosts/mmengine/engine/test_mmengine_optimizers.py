"""Settings of parameters and optimizer steps under mmengine, against fast-reid's."""

import pytest
import torch
from fastreid.solver.build import get_default_optimizer_params, maybe_add_gradient_clipping
from mmengine.config import ConfigDict
from mmengine.optim import build_optim_wrapper
from mmengine.registry import OPTIM_WRAPPERS
from torch import nn
from torch.optim import SGD

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.mmengine.engine import optimizers
from agreid_plugin.hosts.mmengine.engine.optimizers import OptimWrapperConstructor, clip_each


@pytest.fixture
def said(monkeypatch) -> list[str]:
    """What is logged."""
    lines = []
    monkeypatch.setattr(optimizers, "print_log", lambda line, *_: lines.append(line))
    return lines


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
