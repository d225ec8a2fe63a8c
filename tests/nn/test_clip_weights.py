import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from agreid_plugin.errors import InputError
from agreid_plugin.nn.clip import CLIP
from agreid_plugin.nn.clip_build import build_clip
from agreid_plugin.nn.clip_weights import detect_quick_gelu, load_clip

IMAGE_SHAPE = {"width": 8, "layers": 2, "heads": 2, "patch_size": 4}
TEXT_SHAPE = {"text_width": 6, "text_layers": 3, "text_heads": 3}
TINY = IMAGE_SHAPE | TEXT_SHAPE | {"embed_dim": 5}
SAME = {"image_size": (12, 12), "text_length": 7}  # what the files are made for: 3x3 patches
KINDS = [
    "openai.pt",
    "flat.safetensors",
    "custom.safetensors",
    "flat.bin",
    "training.pt",
    "hugging.safetensors",
    "hugging.bin",
]


def clip_of(seed: int = 0, **arguments) -> CLIP:
    torch.manual_seed(seed)
    clip = build_clip(**SAME | TINY | arguments)
    for parameter in (*clip.image.parameters(), *clip.text.parameters()):
        nn.init.normal_(parameter)
        parameter.data = parameter.data.half().float()  # half precision loses nothing of it
    return clip


def state_of(clip: CLIP) -> dict[str, Tensor]:
    parts = {"visual": clip.image.visual, "text": clip.text.text}
    return {f"{part}.{name}": value for part, core in parts.items() for name, value in core.state_dict().items()}


def flat(clip: CLIP) -> dict[str, Tensor]:
    """The names of OpenAI's CLIP and open_clip's: those of the text tower have nothing before them."""
    return {name.removeprefix("text."): value for name, value in state_of(clip).items()} | {
        "logit_scale": torch.ones([])
    }


def hugging_face(clip: CLIP) -> dict[str, Tensor]:
    """The names and layouts of Hugging Face's CLIPModel, written out module by module."""
    visual, text = clip.image.visual, clip.text.text
    state = {
        "logit_scale": torch.ones([]),
        "vision_model.embeddings.class_embedding": visual.class_embedding,
        "vision_model.embeddings.patch_embedding.weight": visual.conv1.weight,
        "vision_model.embeddings.position_embedding.weight": visual.positional_embedding,
        "vision_model.embeddings.position_ids": torch.arange(len(visual.positional_embedding))[None],
        "vision_model.pre_layrnorm.weight": visual.ln_pre.weight,
        "vision_model.pre_layrnorm.bias": visual.ln_pre.bias,
        "vision_model.post_layernorm.weight": visual.ln_post.weight,
        "vision_model.post_layernorm.bias": visual.ln_post.bias,
        "visual_projection.weight": visual.proj.T,
        "text_model.embeddings.token_embedding.weight": text.token_embedding.weight,
        "text_model.embeddings.position_embedding.weight": text.positional_embedding,
        "text_model.embeddings.position_ids": torch.arange(len(text.positional_embedding))[None],
        "text_model.final_layer_norm.weight": text.ln_final.weight,
        "text_model.final_layer_norm.bias": text.ln_final.bias,
        "text_projection.weight": text.text_projection.T,
    }
    for part, blocks in (("vision_model", clip.image.blocks), ("text_model", clip.text.blocks)):
        for number, block in enumerate(blocks):
            layer = f"{part}.encoder.layers.{number}"
            for kind in ("weight", "bias"):
                packed = getattr(block.attn, f"in_proj_{kind}")
                for letter, value in zip("qkv", packed.chunk(3), strict=True):
                    state[f"{layer}.self_attn.{letter}_proj.{kind}"] = value
                state[f"{layer}.self_attn.out_proj.{kind}"] = getattr(block.attn.out_proj, kind)
                state[f"{layer}.layer_norm1.{kind}"] = getattr(block.ln_1, kind)
                state[f"{layer}.layer_norm2.{kind}"] = getattr(block.ln_2, kind)
                state[f"{layer}.mlp.fc1.{kind}"] = getattr(block.mlp.c_fc, kind)
                state[f"{layer}.mlp.fc2.{kind}"] = getattr(block.mlp.c_proj, kind)
    return {name: value.detach().clone().contiguous() for name, value in state.items()}


class Names(nn.Module):
    """A module with these tensors, at any depth; its forward is of no interest."""

    def __init__(self, state: dict[str, Tensor]):
        super().__init__()
        for name in {name.split(".")[0] for name in state}:
            below = {key.partition(".")[2]: value for key, value in state.items() if key.split(".")[0] == name}
            if "" in below:
                self.register_buffer(name, below[""])
            else:
                self.add_module(name, Names(below))

    def forward(self, images: Tensor) -> Tensor:
        return images


def save_script(state: dict[str, Tensor], path) -> None:
    """Write an archive as OpenAI's: half precision, and three numbers among the weights."""
    numbers = {"input_resolution": 12, "context_length": 7, "vocab_size": 49408}
    halves = {name: value.half() for name, value in state.items()}
    module = Names(halves | {name: torch.tensor(number) for name, number in numbers.items()})
    torch.jit.trace(module, torch.zeros(1)).save(str(path))


def save(clip: CLIP, folder, kind: str):
    """Write a file as its makers do."""
    path, maker = folder / kind, kind.split(".")[0]
    state = {"custom": state_of, "hugging": hugging_face}.get(maker, flat)(clip)
    if maker == "openai":
        save_script(state, path)
    elif maker == "training":
        torch.save({"epoch": 3, "state_dict": {f"module.{name}": value for name, value in state.items()}}, path)
    elif path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    return path


def assert_refused(clip, path, *words: str, towers=None) -> None:
    """Loading is refused in one line that has these words, and the towers are as they were."""
    earlier = {name: value.clone() for name, value in state_of(clip).items()}
    with pytest.raises(InputError) as error:
        load_clip(clip if towers is None else towers, path)
    assert "\n" not in str(error.value)
    for word in (str(path), *words):
        assert word in str(error.value)
    assert all(torch.equal(earlier[name], value) for name, value in state_of(clip).items())


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_all_formats_give_the_foreign_model(tmp_path, kind):
    foreign, clip = clip_of(0), clip_of(1)
    path = save(foreign, tmp_path, kind)
    fit = load_clip(clip, path)
    ours = state_of(clip)
    assert all(torch.equal(value, ours[name]) for name, value in state_of(foreign).items())
    assert {value.dtype for value in ours.values()} == {torch.float32}
    assert (fit.path, fit.loaded, fit.wanted, fit.missing) == (str(path), 73, 73, ())
    assert fit.unused == (() if kind.startswith("custom") else ("logit_scale",))
    images, tokens = torch.randn(2, 3, 12, 12), clip.text.tokenize(["ground", "aerial"])
    assert torch.equal(clip.image(images).tokens, foreign.image(images).tokens)
    assert torch.equal(clip.text(tokens), foreign.text(tokens))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("kind", KINDS)
def test_all_formats_are_resized_alike(tmp_path, kind, mode):
    foreign = clip_of(0)
    clip = clip_of(1, image_size=(16, 9), stride=(3, 4), text_length=11)  # 5x2 patches
    load_clip(clip, save(foreign, tmp_path, kind), mode)
    stored = foreign.image.visual.positional_embedding.detach()
    grid = stored[1:].reshape(1, 3, 3, 8).permute(0, 3, 1, 2)
    resized = F.interpolate(grid, (5, 2), mode=mode, align_corners=False)[0].permute(1, 2, 0).reshape(10, 8)
    assert torch.equal(clip.image.visual.positional_embedding, torch.cat([stored[:1], resized]))
    assert torch.equal(clip.image.visual.proj, foreign.image.visual.proj)
    rows, made = foreign.text.text.positional_embedding, clip.text.text.positional_embedding
    assert torch.equal(made[[0, -1]], rows[[0, -1]])
    assert made.shape == (11, 6)


def test_image_positions_by_hand(tmp_path):
    """2x2 to 2x4: centers at -1/4 (clamped to 0), 1/4, 3/4, 5/4 (clamped to 1) of the two columns."""
    foreign, clip = clip_of(0, image_size=(8, 8)), clip_of(1, image_size=(8, 16))
    column = torch.tensor([9.0, 0.0, 4.0, 8.0, 16.0])
    foreign.image.visual.positional_embedding.data = column[:, None].repeat(1, 8)
    load_clip(clip.image, save(foreign, tmp_path, "flat.bin"))
    assert clip.image.visual.positional_embedding[:, 3].tolist() == [9, 0, 1, 3, 4, 8, 10, 14, 16]


def test_a_square_grid_of_as_many_patches_is_resized_too(tmp_path):
    foreign, clip = clip_of(0, image_size=(8, 8)), clip_of(1, image_size=(16, 4))  # 2x2 and 4x1
    column = torch.tensor([9.0, 0.0, 4.0, 8.0, 16.0])
    foreign.image.visual.positional_embedding.data = column[:, None].repeat(1, 8)
    load_clip(clip.image, save(foreign, tmp_path, "flat.bin"))
    assert clip.image.visual.positional_embedding[:, 0].tolist() == [9, 2, 4.5, 9.5, 12]


def test_positions_of_our_own_grid_are_kept(tmp_path):
    foreign, clip = clip_of(0, image_size=(16, 8)), clip_of(1, image_size=(16, 8))  # 4x2, not square
    load_clip(clip, save(foreign, tmp_path, "flat.bin"))
    assert torch.equal(clip.image.visual.positional_embedding, foreign.image.visual.positional_embedding)


def test_text_positions_by_hand(tmp_path):
    """Rows 0 and 6 are kept; 5 rows between become 10, at -1/4 (clamped to 0), 1/4, 3/4, ... 17/4 (clamped to 4)."""
    foreign, clip = clip_of(0), clip_of(1, text_length=12)
    column = torch.tensor([50.0, 0.0, 4.0, 8.0, 12.0, 16.0, 90.0])
    foreign.text.text.positional_embedding.data = column[:, None].repeat(1, 6)
    load_clip(clip.text, save(foreign, tmp_path, "flat.bin"))
    assert clip.text.text.positional_embedding[:, 2].tolist() == [50, 0, 1, 3, 5, 7, 9, 11, 13, 15, 16, 90]


def test_text_positions_of_a_longer_and_a_shorter_sentence(tmp_path):
    foreign, longer, shorter = clip_of(0, text_length=77), clip_of(1, text_length=100), clip_of(1, text_length=40)
    stored, path = foreign.text.text.positional_embedding.detach(), save(foreign, tmp_path, "openai.pt")
    load_clip(longer, path)
    between = F.interpolate(stored[1:76].T[None], 98, mode="linear", align_corners=False)[0].T
    assert torch.equal(longer.text.text.positional_embedding, torch.cat([stored[:1], between, stored[76:]]))
    load_clip(shorter, path)
    assert torch.equal(shorter.text.text.positional_embedding, stored[:40])
    assert longer.text(longer.text.tokenize("X")).shape == (1, 100, 5)


def test_half_precision_is_widened_before_resizing(tmp_path):
    foreign, clip = clip_of(0), clip_of(1, image_size=(16, 8))
    load_clip(clip, save(foreign, tmp_path, "openai.pt"))
    made = clip.image.visual.positional_embedding.detach()
    assert made.dtype == torch.float32
    assert not torch.equal(made, made.half().float())


@pytest.mark.parametrize("kind", KINDS)
def test_one_tower_alone(tmp_path, kind):
    foreign, path = clip_of(0), save(clip_of(0), tmp_path, kind)
    for asked, other, count in (("image", "text", 32), ("text", "image", 41)):
        clip, before = clip_of(1), clip_of(1)
        fit = load_clip(getattr(clip, asked), path)
        assert (fit.loaded, fit.wanted) == (count, count)
        assert set(fit.unused) <= {"logit_scale"}
        filled, kept = getattr(clip, asked).state_dict(), getattr(clip, other).state_dict()
        assert all(torch.equal(value, filled[name]) for name, value in getattr(foreign, asked).state_dict().items())
        assert all(torch.equal(value, kept[name]) for name, value in getattr(before, other).state_dict().items())


def test_a_list_of_towers(tmp_path):
    foreign, clip = clip_of(0), clip_of(1)
    path = save(foreign, tmp_path, "custom.safetensors")
    assert load_clip([clip.text, clip.image], path).loaded == 73
    assert torch.equal(clip.image.visual.proj, foreign.image.visual.proj)
    with pytest.raises(InputError, match="one image tower, one text tower or both"):
        load_clip([clip.image, clip_of(2).image], path)


@pytest.mark.parametrize("kind", ["flat.safetensors", "hugging.bin"])
def test_a_file_without_text(tmp_path, kind):
    foreign, clip, path = clip_of(0), clip_of(1), tmp_path / kind
    kept = {n: v for n, v in state_of(foreign).items() if n.startswith("visual.")}
    if kind.startswith("hugging"):
        torch.save({n: v for n, v in hugging_face(foreign).items() if n.startswith("vis")}, path)
    else:
        save_file(kept, path)
    assert_refused(clip, path, "fits 32 of the model's 73 tensors", "it has no text tower")
    assert_refused(clip, path, "it has no text tower", towers=clip.text)
    assert load_clip(clip.image, path).loaded == 32
    assert torch.equal(clip.image.visual.proj, foreign.image.visual.proj)


@pytest.mark.parametrize("kind", ["openai.pt", "flat.safetensors", "hugging.bin"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"width": 16}, ["visual.class_embedding is (16,), but the model's is (8,)"]),
        ({"patch_size": 2}, ["visual.conv1.weight is (8, 3, 2, 2), but the model's is (8, 3, 4, 4)"]),
        ({"text_width": 12}, ["text.positional_embedding is (7, 12), but the model's is (7, 6)"]),
        ({"embed_dim": 4}, ["visual.proj is (8, 4), but the model's is (8, 5)", "take another file"]),
        ({"layers": 3}, ["fits 73 of", "3 blocks in the image tower, the model has 2"]),
        ({"text_layers": 2}, ["fits 61 of", "2 blocks in the text tower, the model has 3"]),
        ({"image_size": (16, 12)}, ["fits 72 of", "(13, 8), but the model's is (10, 8); only CLS and a square grid"]),
    ],
)
def test_other_clips_are_refused(tmp_path, kind, arguments, words):
    assert_refused(clip_of(1), save(clip_of(0, **arguments), tmp_path, kind), *words)


def test_other_models_and_incomplete_files_are_refused(tmp_path):
    clip, path = clip_of(1), tmp_path / "a.pth"
    torch.save({"layer1.weight": torch.ones(4, 3), "bn1.weight": torch.ones(4)}, path)
    assert_refused(clip, path, "fits 0 of the model's 73", "no CLIP", "layer1.weight, bn1.weight")
    state = flat(clip_of(0))
    torch.save({name: value for name, value in state.items() if not name.startswith("ln_final")}, path)
    assert_refused(clip, path, "fits 71 of", "not text.ln_final.weight, text.ln_final.bias", "incomplete")
    broken = hugging_face(clip_of(0))
    torch.save(broken | {"text_model.encoder.layers.1.self_attn.k_proj.weight": torch.ones(6, 4)}, path)
    assert_refused(clip, path, "other shapes than a CLIP's")
    del broken["vision_model.encoder.layers.1.self_attn.v_proj.bias"]
    torch.save(broken, path)
    assert_refused(clip, path, "not visual.transformer.resblocks.1.attn.in_proj_bias")
    torch.save(state | {"visual.positional_embedding": torch.ones([]), "positional_embedding": torch.ones(2, 6)}, path)
    assert_refused(clip, path, "visual.positional_embedding is ()")
    assert_refused(clip, path, "text.positional_embedding is (2, 6)", towers=clip.text)


def test_missing_and_other_files_are_refused(tmp_path):
    clip, path = clip_of(1), tmp_path / "a.pt"
    assert_refused(clip, path, "weight file", "does not exist")
    torch.save({"model": None}, path)
    assert_refused(clip, path, "NoneType")
    torch.save({"model": {"step": 7}}, path)
    assert_refused(clip, path, "no tensors")
    with pytest.raises(InputError, match="'nearest' unknown"):
        load_clip(clip, path, mode="nearest")


@pytest.mark.parametrize("kind", ["openai.pt", "flat.safetensors", "flat.bin"])
def test_damaged_files_are_refused(tmp_path, kind):
    path, clip = save(clip_of(0), tmp_path, kind), clip_of(1)
    whole = path.read_bytes()
    hole = whole[:200] + b"\x00" * 400 + whole[600:]
    for content in (whole[: len(whole) // 2], whole[:-40], whole[:5], b"", b"<html>not found</html>", hole):
        path.write_bytes(content)
        assert_refused(clip, path)


def test_quick_gelu_is_told_by_the_file_or_beside_it(tmp_path):
    clip = clip_of(0)
    assert detect_quick_gelu(save(clip, tmp_path, "openai.pt")) is True
    path = save(clip, tmp_path, "hugging.safetensors")
    assert detect_quick_gelu(path) is None
    for content, expected in (
        ({"model_type": "clip", "text_config": {"hidden_act": "gelu"}, "vision_config": {"hidden_act": "gelu"}}, False),
        ({"model_type": "clip", "text_config": {"hidden_act": "quick_gelu"}, "vision_config": {"width": 3}}, True),
        ({"model_type": "clip"}, True),
        ({"model_type": "clip_vision_model", "hidden_act": "gelu"}, False),
        ({"model_type": "vit", "hidden_act": "quick_gelu"}, None),
    ):
        (tmp_path / "config.json").write_text(json.dumps(content))
        assert detect_quick_gelu(path) is expected, content


def test_quick_gelu_is_told_by_open_clips_settings(tmp_path):
    path, settings = save(clip_of(0), tmp_path, "flat.safetensors"), tmp_path / "open_clip_config.json"
    for content, expected in (
        ({"model_cfg": {"embed_dim": 512}}, False),
        ({"model_cfg": {"quick_gelu": True}}, True),
        ({"preprocess_cfg": {}}, None),
    ):
        settings.write_text(json.dumps(content))
        assert detect_quick_gelu(path) is expected, content
    for content in ("{not json", "[1]"):
        settings.write_text(content)
        with pytest.raises(InputError, match=r"open_clip_config\.json"):
            detect_quick_gelu(path)
    with pytest.raises(InputError, match="does not exist"):
        detect_quick_gelu(tmp_path / "none.pt")


@torch.no_grad()
def test_the_activation_told_gives_the_foreign_model(tmp_path):
    foreign = clip_of(0, quick_gelu=True)
    path = save(foreign, tmp_path, "openai.pt")
    images = torch.randn(2, 3, 12, 12)
    right, wrong = clip_of(1, quick_gelu=detect_quick_gelu(path)), clip_of(1)
    load_clip(right, path)
    load_clip(wrong, path)
    assert torch.equal(right.image(images).tokens, foreign.image(images).tokens)
    assert not torch.allclose(wrong.image(images).tokens, foreign.image(images).tokens)
