"""Parts of CLIP's towers that do not learn, and those that do."""

import pytest
import torch
from tiny_clip import assert_refused, clip_of
from torch import nn

from agreid_plugin.nn.clip_build import freeze, freeze_named


def trained(module: nn.Module) -> set[str]:
    return {name for name, parameter in module.named_parameters() if parameter.requires_grad}


def test_freezing_by_part():
    tower = clip_of().image
    everything, stem = (
        trained(tower),
        {"conv1.weight", "class_embedding", "positional_embedding", "ln_pre.weight", "ln_pre.bias"},
    )
    freeze(tower, "stem")
    assert everything - trained(tower) == {f"visual.{name}" for name in stem}
    freeze(tower, ["stem", "blocks:0-1"])
    left = {name for name in everything if ".resblocks.2." in name}
    assert trained(tower) == left | {"visual.ln_post.weight", "visual.ln_post.bias", "visual.proj"}
    freeze(tower, "all")
    assert not trained(tower)


def test_freezing_the_text_tower():
    clip = clip_of()
    freeze(clip.text, "all")
    assert not trained(clip.text)
    assert trained(clip.image)
    embeddings = torch.randn(1, 20, 12, requires_grad=True)
    clip.text(clip.text.tokenize("X"), embeddings).sum().backward()
    assert embeddings.grad.abs().sum() > 0  # prompts learn through a frozen tower


def test_freezing_by_names_of_both_towers():
    clip, other = clip_of(), clip_of()
    freeze_named(clip, ["text", "image.stem"])
    freeze(other.image, "stem")
    assert not trained(clip.text)
    assert trained(clip.image) == trained(other.image)
    freeze_named(clip, ["image"])
    assert not trained(clip.image)


def test_frozen_blocks_get_no_gradients_and_others_do():
    tower = clip_of().image
    freeze(tower, ["stem", "blocks:0-0"])
    tower.project(tower(torch.randn(2, 3, 32, 16)).tokens).pow(2).sum().backward()
    for name, parameter in tower.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("stm", ["part of an image tower 'stm' unknown (did you mean stem?)", "blocks:0-2"]),
        ("blocks:1-3", ["part 'blocks:1-3'", "0-2"]),
        ("blocks:2-1", ["part 'blocks:2-1'"]),
        ("blocks:1", ["'blocks:1' unknown"]),
    ],
)
def test_unknown_parts_are_refused(part, words):
    tower = clip_of().image
    assert_refused(lambda: freeze(tower, part), *words)
    assert_refused(lambda: freeze_named(clip_of(), [f"image.{part}"], "FREEZE"), "FREEZE: part ", *words)


def test_unknown_towers_are_refused():
    assert_refused(lambda: freeze(clip_of().text, "stem"), "part of a text tower 'stem' unknown", "all")
    assert_refused(lambda: freeze_named(clip_of(), ["imag"], "FREEZE"), "FREEZE 'imag' unknown (did you mean image?)")
