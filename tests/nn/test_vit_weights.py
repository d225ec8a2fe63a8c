import itertools

import numpy as np
import pytest
import torch
from jax_vit import as_jax
from safetensors.torch import save_file
from torch import nn

from agreid_plugin.errors import InputError
from agreid_plugin.nn.checkpoints import read_arrays, read_checkpoint
from agreid_plugin.nn.vit import VisionTransformer
from agreid_plugin.nn.vit_weights import Fit, load_pretrained, resize_positions


def vit_of(seed: int = 0, **arguments) -> VisionTransformer:
    """Images of 12x8 in patches of 4: a grid of 3x2. No parameter is zero."""
    torch.manual_seed(seed)
    defaults = {"image_size": (12, 8), "patch_size": 4, "width": 12, "depth": 3, "heads": 3}
    vit = VisionTransformer(**defaults | arguments).eval()
    for parameter in vit.parameters():
        nn.init.normal_(parameter)
    return vit


def save(vit: VisionTransformer, path, kind: str):
    """Write a file as its makers do, with the classifier they leave in it."""
    state = vit.state_dict() | {"head.weight": torch.zeros(5, vit.width), "head.bias": torch.zeros(5)}
    path = path / f"foreign.{kind}"
    if kind == "npz":
        np.savez(path, **as_jax(vit))
    elif kind == "safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    return path


def assert_refused(vit: VisionTransformer, path, *words: str) -> None:
    """Loading is refused in one line that has these words, and the model is as it was."""
    earlier = {name: value.clone() for name, value in vit.state_dict().items()}
    with pytest.raises(InputError) as error:
        load_pretrained(vit, path)
    assert "\n" not in str(error.value)
    for word in (str(path), *words):
        assert word in str(error.value)
    assert all(torch.equal(earlier[name], value) for name, value in vit.state_dict().items())


@pytest.mark.parametrize("kind", ["pth", "safetensors", "npz"])
@torch.no_grad()
def test_three_formats_give_the_foreign_model(tmp_path, kind):
    foreign, vit = vit_of(0), vit_of(1)
    images = torch.randn(2, 3, 12, 8)
    assert not torch.allclose(vit(images), foreign(images))
    fit = load_pretrained(vit, save(foreign, tmp_path, kind))
    assert all(torch.equal(value, vit.state_dict()[name]) for name, value in foreign.state_dict().items())
    assert torch.equal(vit(images), foreign(images))
    assert (fit.loaded, fit.wanted, fit.missing) == (42, 42, ())
    assert set(fit.unused) == ({"head/kernel", "head/bias"} if kind == "npz" else {"head.weight", "head.bias"})


@pytest.mark.parametrize("kind", ["pth", "safetensors", "npz"])
def test_three_formats_are_resized_alike(tmp_path, kind):
    foreign = vit_of(0, image_size=(16, 16))  # 4x4
    vit = vit_of(1, stride=(3, 2), extra_tokens=2)  # 3x3
    load_pretrained(vit, save(foreign, tmp_path, kind))
    assert torch.equal(vit.pos_embed, resize_positions(foreign.pos_embed.detach(), (3, 3), 2))
    assert torch.equal(vit.blocks[2].attn.qkv.weight, foreign.blocks[2].attn.qkv.weight)


@pytest.mark.parametrize("key", ["model", "state_dict"])
@pytest.mark.parametrize("prefix", ["", "module.", "backbone.", "base.", "module.backbone.", "backbone.base."])
def test_wrapped_state_dicts_are_unwrapped(tmp_path, key, prefix):
    foreign, vit = vit_of(0), vit_of(1)
    state = {prefix + name: value for name, value in foreign.state_dict().items()}
    torch.save({key: state | {"heads.norm.weight": torch.ones(12), "step": 7}, "epoch": 3}, tmp_path / "a.pth")
    fit = load_pretrained(vit, tmp_path / "a.pth")
    assert (fit.loaded, fit.unused) == (42, ("heads.norm.weight",))
    assert torch.equal(vit.norm.weight, foreign.norm.weight)


def test_half_precision_is_widened(tmp_path):
    foreign, vit = vit_of(0).half(), vit_of(1, extra_tokens=1)
    load_pretrained(vit, save(foreign, tmp_path, "pth"))
    assert vit.pos_embed.dtype == torch.float32
    assert torch.equal(vit.norm.bias, foreign.norm.bias.float())


def test_positions_by_hand():
    """2x2 to 2x4: centers at -1/4 (clamped to 0), 1/4, 3/4, 5/4 (clamped to 1) of the two columns."""
    stored = torch.tensor([9.0, 0.0, 4.0, 8.0, 16.0]).reshape(1, 5, 1)
    resized = resize_positions(stored, (2, 4), extra_tokens=2)
    assert resized.flatten().tolist() == [9, 0, 0, 0, 1, 3, 4, 8, 10, 14, 16]
    taller = resize_positions(stored, (4, 2), extra_tokens=0)
    assert taller.flatten().tolist() == [9, 0, 4, 2, 7, 6, 13, 8, 16]
    smaller = resize_positions(stored, (1, 1), extra_tokens=1)
    assert smaller.flatten().tolist() == [9, 0, 7]


def test_positions_of_the_released_models():
    stored = torch.randn(1, 197, 8)
    resized = resize_positions(stored, (21, 10), extra_tokens=1)
    assert resized.shape == (1, 212, 8)
    assert torch.equal(resized[:, :2], stored[:, :2])  # CLS, and the view token in the top-left patch's place


def test_positions_of_our_own_grid_are_kept(tmp_path):
    foreign, vit = vit_of(0), vit_of(1, extra_tokens=1)  # 3x2 both
    load_pretrained(vit, save(foreign, tmp_path, "pth"))
    assert torch.equal(vit.pos_embed[:, 2:], foreign.pos_embed[:, 1:])
    assert torch.equal(vit.pos_embed[:, :2], foreign.pos_embed[:, :2])


def test_positions_of_our_own_shape_are_copied(tmp_path):
    foreign, vit = vit_of(0, extra_tokens=3), vit_of(1, extra_tokens=3)  # 10 rows: not to be taken for CLS and 3x3
    load_pretrained(vit, save(foreign, tmp_path, "pth"))
    assert torch.equal(vit.pos_embed, foreign.pos_embed)


def test_what_did_not_fit_is_said(tmp_path):
    foreign, vit = vit_of(0), vit_of(1)
    state = foreign.state_dict() | {"head.weight": torch.zeros(5, 12), "head.bias": torch.zeros(5)}
    del state["norm.weight"], state["norm.bias"]
    torch.save(state, tmp_path / "a.pth")
    earlier = vit.norm.weight.clone()
    fit = load_pretrained(vit, tmp_path / "a.pth")
    assert torch.equal(vit.norm.weight, earlier)
    assert str(fit) == (
        f"40 of 42 tensors from {tmp_path}/a.pth; left as they were: norm.weight, norm.bias; "
        "not used: head.weight, head.bias"
    )
    assert str(Fit("a.pth", 2, 2, (), ())) == "2 of 2 tensors from a.pth"
    assert str(Fit("a.pth", 2, 2, (), tuple("abcdefgh"))).endswith("not used: a, b, c, d, e, f, ... (8 in all)")


@pytest.mark.parametrize("kind", ["pth", "npz"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"width": 24}, ("fits 0 of the model's 42 tensors", "width 24, this model has 12")),
        ({"patch_size": 2}, ("fits 40 of", "patch kernel (12, 3, 2, 2), this model has (12, 3, 4, 4)", "patch_size")),
        ({"depth": 2}, ("fits 30 of", "2 blocks, this model has 3")),
        ({"mlp_ratio": 2.0}, ("fits 33 of", "another model")),
        ({"image_size": (16, 12)}, ("fits 41 of", "position embedding (1, 13, 12), this model has (1, 7, 12)")),
    ],
)
def test_other_vits_are_refused(tmp_path, kind, arguments, words):
    assert_refused(vit_of(1), save(vit_of(0, **arguments), tmp_path, kind), *words)


def test_sizes_are_told_by_name(tmp_path):
    state = vit_of(width=384, depth=1, heads=6).state_dict()
    torch.save(state, tmp_path / "a.pth")
    words = "width 384, this model has 192: small instead of tiny?"
    assert_refused(vit_of(width=192, depth=1), tmp_path / "a.pth", words)


def test_no_vit_is_refused(tmp_path):
    torch.save({"conv1.weight": torch.ones(4, 3, 7, 7), "bn1.weight": torch.ones(4)}, tmp_path / "resnet.pth")
    words = ("fits 0 of the model's 42 tensors", "no ViT", "conv1.weight, bn1.weight")
    assert_refused(vit_of(), tmp_path / "resnet.pth", *words)
    torch.save({"model": None}, tmp_path / "none.pth")
    assert_refused(vit_of(), tmp_path / "none.pth", "NoneType under 'model'")
    np.savez(tmp_path / "other.npz", data=np.ones(3))
    assert_refused(vit_of(), tmp_path / "other.npz", "no ViT", "data")
    arrays = as_jax(vit_of()) | {"embedding/kernel": np.ones(3)}
    np.savez(tmp_path / "odd.npz", **arrays)
    assert_refused(vit_of(), tmp_path / "odd.npz", "other shapes than a ViT's")


def test_a_missing_file_is_refused(tmp_path):
    for name in ("none.pth", "none.safetensors", "none.npz"):
        assert_refused(vit_of(), tmp_path / name, "does not exist")


@pytest.mark.parametrize("kind", ["pth", "safetensors", "npz"])
def test_cut_off_and_foreign_files_are_refused(tmp_path, kind):
    path = save(vit_of(), tmp_path, kind)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:5], b"", b"<html>not found</html>"):
        path.write_bytes(content)
        assert_refused(vit_of(), path)


def test_positions_of_no_square_grid_are_refused():
    with pytest.raises(InputError, match=r"position embedding \(1, 8, 4\) cannot be resized to \(2, 2\): only CLS and"):
        resize_positions(torch.zeros(1, 8, 4), (2, 2), extra_tokens=0)


def test_code_in_an_npz_does_not_run(tmp_path):
    np.savez(tmp_path / "a.npz", cls=np.array([{"any": "object"}], dtype=object))
    assert_refused(vit_of(), tmp_path / "a.npz", "allow_pickle")


def test_readers(tmp_path):
    state = {"a": torch.ones(2), "b.c": torch.zeros(3, 1)}
    save_file(state, tmp_path / "a.safetensors")
    torch.save(state, tmp_path / "a.pth")
    np.savez(tmp_path / "a.npz", **{name: value.numpy() for name, value in state.items()})
    read = (
        read_checkpoint(tmp_path / "a.safetensors")["model"],
        read_checkpoint(tmp_path / "a.pth")["model"],
        read_arrays(tmp_path / "a.npz"),
    )
    for content, (name, value) in itertools.product(read, state.items()):
        assert torch.equal(content[name], value)
