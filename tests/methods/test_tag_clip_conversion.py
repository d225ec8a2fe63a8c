"""Released TAG-CLIP checkpoints in our names: the same features, and one line for what does not convert."""

import pytest
import torch
from golden.recording import shapes_of
from released_tag_clip import released_tag_clip as released
from released_tag_clip import tiny_tag_clip as tiny
from torch import Tensor

from agreid_plugin.errors import InputError
from agreid_plugin.methods.tag_clip import TAGCLIP
from agreid_plugin.methods.tag_clip.convert import convert_tag_clip
from agreid_plugin.nn.clip import EOT, SOT
from agreid_plugin.types import Batch

BLOCK = "visual.transformer.resblocks"


@torch.no_grad()
def embeddings(model: TAGCLIP) -> list[Tensor]:
    images = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    outputs = model(Batch(images=images, tokens=torch.tensor([[SOT, 5, 6, 7, EOT, 0, 0, 0]] * 3)))
    return [outputs.images.embedding, outputs.texts.embedding]


def test_the_helper_names_what_was_released():
    wide = tiny(layers=12, at=(6, 7, 8), experts=6)
    assert set(released(wide.state_dict())) == set(shapes_of("tagclip"))


def test_the_same_features():
    original, other = tiny(), tiny()
    converted = convert_tag_clip(released(original.state_dict()))
    for value in other.state_dict().values():
        value.zero_()
    other.load_state_dict(converted.state)
    for found, expected in zip(embeddings(other), embeddings(original), strict=True):
        assert found.equal(expected)


def test_what_is_dropped_is_listed():
    converted = convert_tag_clip(released(tiny().state_dict()))
    assert len(converted.dropped) == 2 * 2 + 2 + 10
    assert {what.split(":")[0] for what in converted.unused} == {
        "a first router of the blocks with experts",
        "a linear layer of the image's TSE",
        "the second norm of both TSEs",
    }


def test_what_does_not_convert_is_refused():
    model, good = tiny(), released(tiny().state_dict())
    with pytest.raises(InputError, match="it is a tag-clip checkpoint in the names of this package already"):
        convert_tag_clip(model.state_dict())
    with pytest.raises(InputError, match=r"visual\.view_token is missing, it has a, \.\.\."):
        convert_tag_clip({"a": torch.zeros(1)})
    with pytest.raises(InputError, match=r"visual\.view_token is missing, it is empty"):
        convert_tag_clip({})
    with pytest.raises(InputError, match=r"the released model has no extra, visual\.more$"):
        convert_tag_clip({**good, "extra": torch.zeros(1), "visual.more": torch.zeros(1)})
    with pytest.raises(InputError, match="incomplete: it has a view token, but no experts"):
        convert_tag_clip({key: value for key, value in good.items() if ".experts." not in key})
    with pytest.raises(InputError, match=r"incomplete: of .*experts\.0\.c_fc\.weight only experts \[0, 2\] are there"):
        convert_tag_clip({key: value for key, value in good.items() if ".experts.1." not in key})
    with pytest.raises(InputError, match=r"damaged: .*experts\.1\.c_fc\.bias is \(1,\), but .* \(32,\)"):
        convert_tag_clip({**good, f"{BLOCK}.1.experts.1.c_fc.bias": torch.zeros(1)})
