"""Recipes of both hosts build the same models, and optimize them in the same way."""

import inspect
from collections.abc import Mapping
from functools import wraps
from types import SimpleNamespace

import pytest
import torch
from fastreid.modeling.meta_arch import META_ARCH_REGISTRY
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS
from recipe_pairs import RECIPES, both_forms
from torch import nn

from agreid_plugin.data.attributes import AttributeSchema
from agreid_plugin.hosts.fastreid.engine.trainer import Trainer

OURS = ("agreid_plugin.losses", "agreid_plugin.methods", "agreid_plugin.nn")


@pytest.fixture(scope="module", params=RECIPES)
def recipe(request, described) -> SimpleNamespace:
    """Both forms of a recipe."""
    return both_forms(request.param, described)


@pytest.fixture(scope="module")
def built(recipe) -> SimpleNamespace:
    """Both models, without memory for their weights, and what they are made of."""
    with pytest.MonkeyPatch.context() as patch, torch.device("meta"):
        recorder = Recorder(patch)
        theirs = META_ARCH_REGISTRY.get(recipe.cfg.MODEL.META_ARCHITECTURE)(recipe.cfg)
        their_parts = recorder.taken()
        ours = MODELS.build(recipe.config.model)
        return SimpleNamespace(theirs=theirs, ours=ours, their_parts=their_parts, our_parts=recorder.taken())


class Recorder:
    """Keeps with what arguments our networks, methods and losses are made."""

    def __init__(self, monkeypatch):
        self.calls = []
        for kind in _kinds(nn.Module):
            if "__init__" in vars(kind) and kind.__module__.startswith(OURS):
                self._watch(kind, monkeypatch)

    def _watch(self, kind, monkeypatch):
        make, signature = kind.__init__, inspect.signature(kind.__init__)

        @wraps(make)  # modules that are imported meanwhile ask for its arguments
        def __init__(module, *args, **kwargs):
            bound = signature.bind(module, *args, **kwargs)
            bound.apply_defaults()
            values = {name: _plain(value) for name, value in bound.arguments.items() if name != "self"}
            self.calls.append((kind.__name__, values))
            make(module, *args, **kwargs)

        monkeypatch.setattr(kind, "__init__", __init__)

    def taken(self):
        """Return the calls so far, in no order: hosts make heads and losses before or after backbones."""
        calls, self.calls = self.calls, []
        return sorted(map(repr, calls))


def _kinds(kind):
    for child in kind.__subclasses__():
        yield child
        yield from _kinds(child)


def _plain(value):
    """Return an argument so that it can be compared: modules by kind, functions and tensors as such."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in sorted(value.items())}
    if isinstance(value, nn.ModuleDict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, AttributeSchema):
        return _plain(value.groups)
    if isinstance(value, nn.Module):
        return next(
            each.__name__ for each in type(value).__mro__ if not each.__module__.startswith("agreid_plugin.hosts")
        )
    if callable(value) or isinstance(value, torch.Tensor):
        return type(value).__name__ if isinstance(value, torch.Tensor) else "function"
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def parameters(model):
    """Return shape and whether it is trained of every parameter, by the name that fast-reid's model has."""
    return {
        name.removeprefix("method."): (tuple(value.shape), value.requires_grad)
        for name, value in model.named_parameters()
    }


def test_models_are_made_of_the_same_parts_with_the_same_arguments(built):
    assert built.our_parts == built.their_parts
    assert len(built.our_parts) > 10
    assert parameters(built.ours) == parameters(built.theirs)


def test_pixels_are_normalized_in_the_same_way(recipe):
    preprocessor = recipe.py.model.data_preprocessor
    assert preprocessor.mean == recipe.yml.MODEL.PIXEL_MEAN
    assert preprocessor.std == recipe.yml.MODEL.PIXEL_STD


def test_weights_are_those_of_the_same_file(recipe):
    yml, model = recipe.yml.MODEL, recipe.py.model
    weights = (model.clip if "clip" in model else model.backbone.vit).get("pretrained")
    assert weights == (yml.BACKBONE.PRETRAIN_PATH if yml.BACKBONE.PRETRAIN else None)
    if "clip" in model:
        assert model.clip.get("quick_gelu", "auto") == yml.CLIP.QUICK_GELU


def settings(optimizer, model):
    """Return what the optimizer does with each parameter, by the name that fast-reid's model has."""
    names = {id(value): name.removeprefix("method.") for name, value in model.named_parameters()}
    return {
        names[id(value)]: {name: _rounded(group[name]) for name in _SETTINGS if name in group}
        for group in optimizer.param_groups
        for value in group["params"]
    }


_SETTINGS = ("lr", "weight_decay", "momentum", "nesterov", "dampening", "betas", "eps", "amsgrad")


def _rounded(value):
    values = value if isinstance(value, tuple | list) else (value,)
    return tuple(float(f"{each:.12g}") for each in values)


def test_each_parameter_is_optimized_in_the_same_way(recipe, built):
    theirs, ours = built.theirs, built.ours
    optimizer, _ = Trainer.build_optimizer(recipe.cfg, theirs)
    is_mixed = recipe.yml.SOLVER.AMP.ENABLED
    assert recipe.py.optim_wrapper.type == ("agreid_plugin.AmpOptimWrapper" if is_mixed else "OptimWrapper")
    wrapper = build_optim_wrapper(ours, recipe.py.optim_wrapper | {"type": "OptimWrapper"})  # weights are on no device
    assert type(wrapper.optimizer).__name__ == recipe.yml.SOLVER.OPT
    found = settings(wrapper.optimizer, ours)
    assert found == settings(optimizer, theirs)
    assert set(found) == {name for name, (_, is_trained) in parameters(ours).items() if is_trained}


def test_gradients_are_clipped_in_the_same_way(recipe):
    clip, wrapper = recipe.yml.SOLVER.CLIP_GRADIENTS, recipe.py.optim_wrapper
    expected = {"type": "each", "max_norm": clip.CLIP_VALUE} if clip.ENABLED else None
    assert wrapper.get("clip_grad") == expected
    assert (clip.CLIP_TYPE, clip.NORM_TYPE) == ("norm", 2.0)
