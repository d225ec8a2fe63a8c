"""Files of weights go from host to host; those of another model are refused."""

import logging

import numpy as np
import pytest
import torch
from torch import nn

from agreid_plugin.errors import InputError
from agreid_plugin.inference.weights import PREDICTOR, load_weights, read_state, require_predictor


class Wrapped(nn.Module):
    """A host's model that has the method as a part."""

    def __init__(self, method: nn.Module):
        super().__init__()
        self.method = method


def network(seed: int = 0, classes: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    layers = {f"layer{number}": nn.Linear(2, 2) for number in range(10)}
    return nn.ModuleDict({**layers, "classifier": nn.Linear(2, classes, bias=False)})


def saved(path, kind: str, state: dict) -> str:
    if kind == "fast-reid":
        content = {"model": state, "epoch": 3}
    else:
        content = {"state_dict": state, "meta": {"epoch": 3}, "message_hub": np.arange(3), "optimizer": {}}
    torch.save(content, path)
    return str(path)


def names(kind: str, state: dict) -> dict:
    prefix = {"fast-reid": "", "mmengine": "method.", "parallel": "module.method."}[kind]
    return {prefix + name: value for name, value in state.items()}


@pytest.mark.parametrize("kind", ["fast-reid", "mmengine", "parallel"])
@pytest.mark.parametrize("wrap", [lambda model: model, Wrapped], ids=["bare", "wrapped"])
def test_a_file_of_one_host_loads_in_the_other(tmp_path, kind, wrap, caplog):
    caplog.set_level(logging.INFO)
    source, model = network(0), network(1)
    path = saved(tmp_path / "a.pth", kind, names(kind, source.state_dict()))
    assert load_weights(wrap(model), path) == []
    for name, value in source.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=0, atol=0)
    assert f"loaded 21 of 21 tensors from {path}" in caplog.text
    assert list(read_state(path)) == list(source.state_dict())


@pytest.mark.parametrize(("wrap", "prefix"), [(lambda model: model, ""), (Wrapped, "method.")], ids=["bare", "wrapped"])
def test_the_classifier_of_other_identities_is_left_out(tmp_path, wrap, prefix):
    path = saved(tmp_path / "a.pth", "fast-reid", network(classes=5).state_dict())
    model = network(1)
    before = model["classifier"].weight.detach().clone()
    assert load_weights(wrap(model), path) == [f"{prefix}classifier.weight"]
    torch.testing.assert_close(model["classifier"].weight.detach(), before, rtol=0, atol=0)


def test_a_file_of_another_model_is_refused(tmp_path):
    state = network().state_dict()
    some = {name: value for name, value in state.items() if name < "layer5"}
    with pytest.raises(InputError, match="fits 11 of the model's 21 tensors"):
        load_weights(network(1), saved(tmp_path / "a.pth", "mmengine", some))
    more = {**state, **{f"extra{number}": torch.zeros(1) for number in range(5)}}
    with pytest.raises(InputError, match="has 5 of 26 tensors that the model has no place for"):
        load_weights(network(1), saved(tmp_path / "b.pth", "mmengine", more))
    other = {**state, "layer0.bias": torch.zeros(7)}
    with pytest.raises(InputError, match=r"layer0.bias is \(7,\), but the model's is \(2,\)"):
        load_weights(network(1), saved(tmp_path / "c.pth", "fast-reid", other))


@pytest.mark.parametrize("wrapper", ["", "method."])
def test_views_of_an_untrained_predictor_are_refused(wrapper):
    left_out, method = [f"{wrapper}{PREDICTOR}0.weight"], nn.Identity()
    require_predictor(method, left_out, "MODEL.VIEW", "a.pth")
    method.view_source = "given"
    require_predictor(method, left_out, "MODEL.VIEW", "a.pth")
    method.view_source = "predicted"
    require_predictor(method, ["head.weight"], "MODEL.VIEW", "a.pth")
    with pytest.raises(InputError, match=r"^model\.view is predicted, but a\.pth has no .* or set model\.view given$"):
        require_predictor(method, left_out, "model.view", "a.pth")
