"""The Python of the guides, run as it is printed."""

import ast

import pytest
import torch
from pages import blocks


def python_of(page: str) -> str:
    """The Python blocks of a guide, one after another."""
    found = [block.text for block in blocks(f"guide/{page}") if block.kind == "python" and not block.file]
    assert found
    return "\n".join(found)


def test_parts_work_without_a_host():
    torch.manual_seed(0)
    names = {}
    exec(python_of("parts.md"), names)
    assert all(weight.grad.any() for weight in names["network"].parameters())
    outputs = names["outputs"]
    assert outputs.encoded.identity.shape == outputs.local.shape == (8, 192)
    assert (names["found"].protocol, names["found"]["Rank-1"]) == ("CARGO/A2G", 100.0)


def assigned(name: str) -> list:
    """What mmengine's guide calls so, time and again."""
    statements = ast.parse(python_of("mmengine.md")).body
    named = [each.value for each in statements if isinstance(each, ast.Assign) and each.targets[0].id == name]
    assert named, f"the guide names no {name}"
    return [eval(compile(ast.Expression(value), "mmengine.md", "eval")) for value in named]


@pytest.mark.parametrize(("scope", "model"), zip(assigned("default_scope"), assigned("model"), strict=True))
def test_models_of_both_toolboxes_are_built(scope, model):
    from mmengine.registry import MODELS, init_default_scope

    init_default_scope(scope)
    assert sum(each.numel() for each in MODELS.build(model).parameters()) > 2e7
