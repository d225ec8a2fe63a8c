import copy
import socket
import sys

import open_clip
import pytest
import torch
from tiny_clip import TINY, assert_refused, clip_of
from torch import Tensor, nn

from agreid_plugin.nn import clip as towers
from agreid_plugin.nn.clip import EOT, ImageTower, TextTower, Tokenizer
from agreid_plugin.nn.clip_build import build_clip

PROMPT = "A photo of a X X X X person from X view."
PROMPT_TOKENS = [49406, 320, 1125, 539, 320, 343, 343, 343, 343, 2533, 633, 343, 1093, 269, 49407]


def full_attention(block: nn.Module, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
    """The attention of every token and head, (B, heads, n, n), as the block itself has it."""
    hidden = block.ln_1(tokens)
    weights = block.attn(hidden, hidden, hidden, need_weights=True, average_attn_weights=False, attn_mask=mask)[1]
    assert weights.shape == (len(tokens), block.attn.num_heads, tokens.shape[1], tokens.shape[1])
    return weights


@pytest.mark.parametrize("quick_gelu", [False, True])
@pytest.mark.parametrize(
    ("image_size", "stride", "grid"),
    [
        ((32, 16), None, (4, 2)),
        ((32, 16), 8, (4, 2)),
        ((32, 16), 6, (5, 2)),
        ((40, 27), (5, 8), (7, 3)),  # 27 columns: 3 patches and 3 columns left over
        ((24, 24), [1, 2], (17, 9)),
        ((8, 8), 3, (1, 1)),
    ],
)
@torch.no_grad()
def test_walking_the_image_tower_is_open_clips_forward(image_size, stride, grid, quick_gelu):
    tower = clip_of(image_size=image_size, stride=stride, quick_gelu=quick_gelu).image
    images = torch.randn(2, 3, *image_size)
    tokens = tower.start(images)
    assert (tower.grid, tower.num_patches, tuple(tokens.shape)) == (
        grid,
        grid[0] * grid[1],
        (2, 1 + grid[0] * grid[1], 16),
    )
    for number, block in enumerate(tower.blocks):
        by_hand = tokens + block.attn(*[block.ln_1(tokens)] * 3)[0]
        by_hand = by_hand + block.mlp.c_proj(block.mlp.gelu(block.mlp.c_fc(block.ln_2(by_hand))))
        tokens = tower.run(tokens, number, number + 1)
        torch.testing.assert_close(tokens, by_hand)
    whole = tower(images)
    torch.testing.assert_close(whole.tokens, tower.end(tokens))
    torch.testing.assert_close(tower.project(whole.tokens[:, 0]), tower.visual(images))
    torch.testing.assert_close(whole.tokens, tower.end(tower.run(tower.start(images))))


@torch.no_grad()
def test_the_models_of_the_papers():
    clip = build_clip("ViT-B-16", stride=12, layers=1, text_layers=1)
    assert (clip.image.width, clip.image.depth, clip.image.embed_dim) == (768, 1, 512)
    assert (clip.image.grid, clip.image.num_patches) == ((21, 10), 210)
    assert clip.image.blocks[0].attn.num_heads == 12
    assert (clip.text.width, clip.text.depth, clip.text.embed_dim, clip.text.length) == (512, 1, 512, 77)
    assert clip.image(torch.randn(1, 3, 256, 128)).tokens.shape == (1, 211, 768)
    other = build_clip("ViT-L-14", image_size=(224, 224), layers=1, text_layers=1).image
    assert (other.width, other.grid, other.blocks[0].attn.num_heads) == (1024, (16, 16), 16)


@torch.no_grad()
def test_patches_have_their_positions_and_no_norm():
    tower, images = clip_of().image, torch.randn(2, 3, 32, 16)
    patches, weight = tower.patches(images), tower.visual.conv1.weight
    corner = images[1, :, 24:32, 8:16]  # the last of 4x2 patches
    expected = torch.einsum("dcrs,crs->d", weight, corner) + tower.visual.positional_embedding[8]
    torch.testing.assert_close(patches[1, 7], expected)
    cls = (tower.visual.class_embedding + tower.visual.positional_embedding[0]).expand(2, 1, -1)
    torch.testing.assert_close(tower.start(images), tower.visual.ln_pre(torch.cat([cls, patches], dim=1)))


@pytest.mark.parametrize("at", [0, 1, None])
def test_extra_tokens_join_before_a_block(at):
    tower, images = clip_of().image, torch.randn(2, 3, 32, 16)
    extra = torch.randn(2, 3, 16, requires_grad=True)
    made, number = tower(images, extra, at), 2 if at is None else at
    before = tower.start(images)
    for block in tower.blocks[:number]:
        before = block(before)
    torch.testing.assert_close(made.before, before)
    tokens = torch.cat([before, extra], dim=1)
    for block in tower.blocks[number:]:
        tokens = block(tokens)
    torch.testing.assert_close(made.tokens, tower.visual.ln_post(tokens))
    assert made.tokens.shape == (2, 12, 16)
    assert not torch.allclose(made.tokens[:, 0], tower(images).tokens[:, 0])  # CLS has seen them
    made.tokens[:, 0].sum().backward()
    assert extra.grad.abs().sum() > 0


def test_before_does_not_depend_on_extra_tokens():
    tower, images = clip_of().image, torch.randn(2, 3, 32, 16)
    torch.testing.assert_close(tower(images).before, tower(images, torch.randn(2, 1, 16)).before)
    torch.testing.assert_close(tower(images).before, tower.run(tower.start(images), last=2))


def test_attention_of_cls_is_the_last_blocks_own():
    tower = clip_of().image
    tokens = torch.randn(2, 11, 16, requires_grad=True)  # any number of them
    earlier = copy.deepcopy(tower.state_dict())
    row = tower.cls_attention(tokens)
    torch.testing.assert_close(row, full_attention(tower.blocks[-1], tokens)[:, :, 0].mean(dim=1))
    torch.testing.assert_close(row.sum(dim=1), torch.ones(2))
    assert all(torch.equal(value, earlier[name]) for name, value in tower.state_dict().items())
    row[:, 1].sum().backward()
    assert tokens.grad.abs().sum() > 0


@pytest.mark.parametrize("length", [20, 100])
@torch.no_grad()
def test_the_text_tower_is_open_clips_forward(length):
    tower = clip_of(text_length=length).text
    tokens = tower.tokenize([PROMPT, "ground", "a person " * 60])
    outputs = tower(tokens)
    assert (tower.length, tuple(tokens.shape), tuple(outputs.shape)) == (length, (3, length), (3, length, 10))
    torch.testing.assert_close(tower.pool(outputs, tokens), tower.text(tokens))
    assert tower.find_ends(tokens).tolist() == [14, 2, length - 1]


@torch.no_grad()
def test_every_position_is_normalized_and_projected():
    tower = clip_of().text
    tokens = tower.tokenize([PROMPT, "aerial"])
    hidden = tower.embed(tokens) + tower.text.positional_embedding
    mask = torch.full((20, 20), -torch.inf).triu(1)
    for block in tower.blocks:
        hidden = block(hidden, attn_mask=mask)
    torch.testing.assert_close(tower(tokens), tower.text.ln_final(hidden) @ tower.text.text_projection)


@torch.no_grad()
def test_shorter_sequences_give_the_same_rows():
    tower = clip_of(text_length=100).text
    tokens = tower.tokenize([PROMPT, "ground"])
    torch.testing.assert_close(tower(tokens[:, :15]), tower(tokens)[:, :15])
    torch.testing.assert_close(tower.pool(tower(tokens[:, :15]), tokens[:, :15]), tower.text(tokens))


def test_embeddings_in_the_place_of_tokens():
    tower, learned = clip_of().text, torch.randn(4, 12, requires_grad=True)
    tokens = tower.tokenize([PROMPT, PROMPT])
    torch.testing.assert_close(tower(tokens, tower.embed(tokens)), tower(tokens))
    embeddings = tower.embed(tokens)
    embeddings = torch.cat([embeddings[:, :5], learned.expand(2, -1, -1), embeddings[:, 9:]], dim=1)
    outputs = tower(tokens, embeddings)
    torch.testing.assert_close(outputs[:, :5], tower(tokens)[:, :5])  # nothing flows back in a sentence
    assert not torch.allclose(tower.pool(outputs, tokens), tower.text(tokens))
    tower.pool(outputs, tokens).sum().backward()
    assert (learned.grad.abs().sum(dim=1) > 0).all()


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_attention_of_the_end_is_the_last_blocks_own(layers):
    tower = clip_of(text_layers=layers).text
    tokens = tower.tokenize([PROMPT, "ground", "a person " * 20])
    hidden = tower.embed(tokens) + tower.text.positional_embedding
    for earlier in tower.blocks[:-1]:
        hidden = earlier(hidden, attn_mask=tower.text.attn_mask)
    weights = full_attention(tower.blocks[-1], hidden, tower.text.attn_mask).mean(dim=1)
    outputs, row = tower.with_attention(tokens)
    torch.testing.assert_close(row, weights[range(3), [14, 2, 19]])
    torch.testing.assert_close(outputs, tower(tokens))
    assert row[1, 3:].abs().sum() == 0
    assert outputs.requires_grad
    assert not row.requires_grad


def test_tokens_are_those_of_clip(monkeypatch):
    def no_network(*arguments, **options):
        raise AssertionError("the tokenizer went online")

    monkeypatch.setattr(socket, "socket", no_network)
    towers._load_tokenizer.cache_clear()
    tower = clip_of().text
    assert tower.tokenize(PROMPT)[0].tolist() == PROMPT_TOKENS + [0] * 5
    assert tower.tokenize(["X", "ground", "aerial"])[:, 1].tolist() == [343, 2461, 12440]
    assert tower.tokenize(["X", ""]).dtype == torch.long
    assert tower.tokenize("")[0, :3].tolist() == [49406, EOT, 0]
    assert torch.equal(tower.tokenize([PROMPT]), open_clip.tokenize([PROMPT], context_length=20))


def test_long_sentences_are_cut_and_end():
    tower, long = clip_of().text, "a person " * 60
    tokens = tower.tokenize([long])
    assert (tower.count(long), tower.count(PROMPT), tower.count("")) == (122, 15, 2)
    assert tokens[0].tolist() == [49406, *[320, 2533] * 9, 49407]
    assert torch.equal(tokens, open_clip.tokenize([long], context_length=20))


@pytest.mark.parametrize(
    "sentence", ["from above. <end_of_text> X", "from above.<end_of_text>X", "From above.<END_OF_TEXT> x"]
)
def test_special_words(sentence):
    tower = clip_of().text
    assert tower.tokenize(sentence)[0, :7].tolist() == [49406, 633, 4348, 269, 49407, 343, 49407]
    assert tower.find_ends(tower.tokenize(sentence)).tolist() == [4]  # the first of two
    assert tower.tokenize("<start_of_text>")[0, :3].tolist() == [49406, 49406, 49407]


def test_weights_are_float32_and_stay_so_under_autocast():
    clip = clip_of()
    optimizer = torch.optim.SGD([*clip.image.parameters(), *clip.text.parameters()], lr=0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        image = clip.image.project(clip.image(torch.randn(2, 3, 32, 16)).tokens[:, 0])
        tokens = clip.text.tokenize(["ground", "aerial"])
        text = clip.text.pool(clip.text(tokens), tokens)
    (image.float() @ text.float().T).sum().backward()
    optimizer.step()
    assert {p.dtype for p in (*clip.image.parameters(), *clip.text.parameters())} == {torch.float32}
    assert {p.grad.dtype for p in clip.image.parameters()} == {torch.float32}


def test_towers_are_copied_and_saved_as_any_module():
    clip, other = clip_of(0), clip_of(1)
    images = torch.randn(1, 3, 32, 16)
    other.image.load_state_dict(clip.image.state_dict())
    assert torch.equal(other.image(images).tokens, clip.image(images).tokens)
    assert torch.equal(copy.deepcopy(clip.text)(clip.text.tokenize("X")), clip.text(clip.text.tokenize("X")))
    assert isinstance(clip.image, ImageTower)
    assert isinstance(clip.text, TextTower)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "ViT-B16"}, ["'ViT-B16' unknown (did you mean ViT-B-16?)", "ViT-B-16-quickgelu"]),
        ({"name": "RN50"}, ["'RN50' unknown"]),
        ({"name": "ViT-B-16-SigLIP"}, ["unknown"]),
        ({"name": "coca_ViT-B-32"}, ["unknown"]),
        ({"image_size": (32, 7)}, ["patch_size=8", "image_size=(32, 7)"]),
        ({"image_size": (32,)}, ["image_size=(32,)", "rows and columns"]),
        ({"image_size": (32, 16.0)}, ["image_size=(32, 16.0)"]),
        ({"stride": 9}, ["stride=9", "from 1 to the side of a patch, 8"]),
        ({"stride": (8, 0)}, ["stride=(8, 0)", "above 0"]),
        ({"stride": (8, 8, 8)}, ["stride=(8, 8, 8)"]),
        ({"heads": 3}, ["heads=3 should divide width=16"]),
        ({"text_heads": 5}, ["text_heads=5 should divide text_width=12"]),
        ({"heads": 0}, ["heads=0 should be a whole number, 1 or more"]),
        ({"width": 16.0}, ["width=16.0"]),
        ({"text_length": 1}, ["text_length=1 should be a whole number, 2 or more"]),
        ({"depth": 3}, ["'depth' unknown", "layers"]),
    ],
)
def test_shapes_that_do_not_go_together_are_refused(arguments, words):
    assert_refused(lambda: clip_of(**arguments), *words)


def test_a_width_without_heads_is_refused_if_none_fit():
    assert_refused(lambda: build_clip(width=32), "heads=0 should divide width=32: set heads")


def test_a_named_quick_gelu_and_an_asked_one_are_the_same():
    clips = [build_clip("ViT-B-16-quickgelu", **TINY), build_clip(quick_gelu=True, **TINY), build_clip(**TINY)]
    kinds = [(type(c.image.blocks[0].mlp.gelu).__name__, type(c.text.blocks[0].mlp.gelu).__name__) for c in clips]
    assert kinds == [("QuickGELU", "QuickGELU"), ("QuickGELU", "QuickGELU"), ("GELU", "GELU")]


def test_inputs_that_do_not_fit_are_refused():
    clip = clip_of()
    image, text, images = clip.image, clip.text, torch.randn(2, 3, 32, 16)
    assert_refused(lambda: image(images.mT), "images=(2, 3, 16, 32) should be (images, 3, 32, 16)")
    assert_refused(lambda: image(images[0]), "images=(3, 32, 16)")
    assert_refused(lambda: image(images, torch.randn(2, 16)), "extra=(2, 16) should be (2, tokens, 16)")
    assert_refused(lambda: image(images, torch.randn(1, 2, 16)), "extra=(1, 2, 16) should be (2, tokens, 16)")
    assert_refused(lambda: image(images, at=3), "at=3 should be a block, 0 .. 2")
    assert_refused(lambda: text(torch.zeros(1, 21, dtype=torch.long)), "tokens=(1, 21)", "1 .. 20")
    assert_refused(
        lambda: text(text.tokenize("X"), torch.zeros(1, 19, 12)), "embeddings=(1, 19, 12) should be (1, 20, 12)"
    )
    assert_refused(lambda: text.find_ends(torch.tensor([[49406, EOT], [49406, 343]])), "49407", "every sentence")


def test_without_open_clip(monkeypatch):
    monkeypatch.setitem(sys.modules, "open_clip", None)
    assert_refused(build_clip, "open_clip", 'pip install "agreid-plugin[clip]"')


def test_a_tokenizer_makes_the_tokens_of_a_tower():
    clip, tokenize = clip_of(), Tokenizer(20)
    for sentence in ("A man.", " ".join(["word"] * 30)):
        assert tokenize(sentence).tolist() == clip.text.tokenize(sentence)[0].tolist()


def test_a_tokenizer_tells_what_it_cuts():
    tokenize = Tokenizer(len(PROMPT_TOKENS))
    assert tokenize(PROMPT).tolist() == PROMPT_TOKENS
    assert not tokenize.is_long(PROMPT)
    assert Tokenizer(len(PROMPT_TOKENS) - 1).is_long(PROMPT)
    assert tokenize(f"{PROMPT} And more.")[-1] == EOT
