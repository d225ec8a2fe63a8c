"""TAG-CLIP with a released checkpoint does what the released code does, in evaluation and in training.

The recorded numbers and how they were made are in `golden/`. All of it goes through the converter.
"""

import json
import re
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from golden import detweights_clip as detweights
from golden.recording import FOLDER, arrays_of, assert_near, shapes_of
from torch import Tensor

from agreid_plugin.methods.tag_clip import (
    TAGCLIP,
    ImageFeatures,
    TAGCLIPOutputs,
    TextFeatures,
    TowerOutputs,
    read_texts,
)
from agreid_plugin.methods.tag_clip.convert import convert_tag_clip
from agreid_plugin.nn.clip_build import build_clip
from agreid_plugin.nn.key_mapping import Converted
from agreid_plugin.types import Batch

SHAPES = shapes_of("tagclip")
RECORDED_LOSSES = json.loads((FOLDER / "tagclip.losses.json").read_text())
BLOCKS = (6, 7, 8)
CLOSE = 1e-4
assert_close = partial(assert_near, tolerance=CLOSE)
RELEASED_PARTS = {
    "linear": {"image": "visual_emb_layer.fc", "text": "textual_emb_layer.linear"},
    "fc1": {"image": "visual_emb_layer.mlp.layers.0", "text": "textual_emb_layer.mlp.layers.0"},
    "norm": {"image": "visual_emb_layer.mlp.bns.0", "text": "textual_emb_layer.mlp.bns.0"},
    "fc2": {"image": "visual_emb_layer.mlp.layers.1", "text": "textual_emb_layer.mlp.layers.1"},
}


@dataclass
class Towers:
    """What the towers make of all images and captions, which evaluation and training have in common here."""

    images: TowerOutputs  # of 8 images
    texts: dict[str, TowerOutputs]  # of 8 captions each
    tokens: dict[str, Tensor]


@dataclass
class Step:
    """What one training step gave, without the gradients of the towers."""

    batch: Batch
    outputs: TAGCLIPOutputs


@pytest.fixture(scope="module")
def recorded() -> dict[str, np.ndarray]:
    return arrays_of("tagclip")


@pytest.fixture(scope="module")
def released() -> dict[str, Tensor]:
    return detweights.fill(SHAPES)


@pytest.fixture(scope="module")
def converted(released) -> Converted:
    assert detweights.fingerprint(released) == RECORDED_LOSSES["weights_fingerprint"]
    found = convert_tag_clip(released)
    released.clear()
    return found


@pytest.fixture(scope="module")
def model(converted) -> TAGCLIP:
    """As recorded: views by argmax, no noise in the routers, no dropout."""
    with torch.device("meta"):  # nothing is drawn that the file fills
        clip = build_clip("ViT-B-16", image_size=(224, 224), quick_gelu=True)
        model = TAGCLIP(clip, 20, sample="argmax", noise=0.0, text_dropout=0.0)
    model.load_state_dict(converted.state, assign=True)
    converted.state.clear()
    text = model.text.text
    text.register_buffer("attn_mask", text.build_causal_mask(), persistent=False)  # the only buffer not in the file
    return model


@pytest.fixture(scope="module")
def towers(model, recorded) -> Towers:
    images = detweights.normalize(detweights.images(8, 224, 224), "imagenet")
    names = ("tokens", "tokens_long")
    tokens = {name: torch.from_numpy(recorded[name].astype(np.int64)) for name in names}
    model.eval()
    with torch.no_grad():
        texts = read_texts(model.text, torch.cat(list(tokens.values())))
        cut = [TowerOutputs(*parts) for parts in zip(texts.tokens.split(8), texts.attention.split(8), strict=True)]
        return Towers(model.image(images), dict(zip(names, cut, strict=True)), tokens)


@pytest.fixture(scope="module")
def images(model, towers) -> ImageFeatures:
    model.eval()
    with torch.no_grad():
        return model.image_features(towers.images)


@pytest.fixture(scope="module")
def texts(model, towers) -> TextFeatures:
    model.eval()
    with torch.no_grad():
        return model.text_features(towers.texts["tokens"], towers.tokens["tokens"])


@pytest.fixture(scope="module")
def steps(model, towers, recorded, images, texts) -> dict[str, Step]:
    """Training steps; they change statistics, so the evaluations come first."""
    model.train()
    found = {}
    for name, tokens in (("train", "tokens"), ("train_long", "tokens_long")):
        batch = Batch(
            tokens=towers.tokens[tokens],
            pids=torch.from_numpy(recorded["ids8"]).long(),
            views=torch.from_numpy(recorded["cam8"]).long(),
        )
        pair = model.image_features(towers.images), model.text_features(towers.texts[tokens], batch.tokens)
        found[name] = Step(batch, TAGCLIPOutputs(*pair, *(model.classifier(one.pooled) for one in pair)))
    model.eval()
    return found


def test_generator_draws_what_was_recorded():
    assert detweights.selftest()


def test_what_is_dropped(converted):
    assert len(converted.dropped) == 18
    assert {len(keys) for keys in converted.unused.values()} == {2, 6, 10}


def test_features_are_those_recorded(images, texts, recorded):
    assert_close(images.pooled[:4], recorded["eval.v_cls"])
    assert_close(texts.pooled[:6], recorded["eval.t_eos"])
    assert_close(images.selected.features[:4], recorded["eval.v_tse"])
    assert_close(texts.selected.features[:6], recorded["eval.t_tse"])


def test_similarity_is_one_dot_product(images, texts, recorded):
    found = texts.embedding[:6] @ images.embedding[:4].T
    assert_close(found, recorded["eval.sim"], tolerance=1e-5)
    assert np.ptp(recorded["eval.sim"]) > 1e-2  # what is compared does differ


@pytest.mark.parametrize("place", range(3))
def test_routing(images, recorded, place):
    block, routed = BLOCKS[place], images.routed[place]
    assert_close(routed.logits[:4], recorded[f"eval.view_logits{block}"])
    assert routed.views[:4].tolist() == recorded[f"eval.view_chosen{block}"].tolist()
    assert_close(routed.weights[:4], recorded[f"eval.gate_weights{block}"])
    assert_close(routed.view[:4], recorded[f"eval.h{block}_view"])


def test_both_views_are_chosen(images):
    assert {view for routed in images.routed for view in routed.views.tolist()} == {0, 1}


def test_tokens_around_the_view_token(model, images, recorded):
    with torch.no_grad():
        view = model.image.tower.visual.ln_pre(model.image.view_token)
    assert_close(view.expand(4, -1), recorded["eval.ln_pre_view"])
    assert_close(images.routed[0].cls[:4], recorded["eval.h6_cls"])


def test_attention_and_selected_tokens(towers, images, texts, recorded):
    assert_close(towers.images.attention[:4], recorded["eval.attn_cls_row"], tolerance=1e-6)
    assert_close(towers.texts["tokens"].attention[:6], recorded["eval.attn_eos_row"], tolerance=1e-6)
    assert images.selected.indices[:4].tolist() == recorded["eval.v_tse_idx"].tolist()
    assert images.selected.real.all()
    assert texts.selected.real[:6].sum(dim=1).tolist() == recorded["eval.t_tse_npool"].tolist()
    found = texts.selected.indices.where(texts.selected.real, -1)[:6]
    assert found.tolist() == recorded["eval.t_tse_idx"].tolist()


@pytest.mark.parametrize("soft_label", [0.0, 0.25, 0.5])
def test_losses_are_those_recorded(model, steps, soft_label):
    expected, step = RECORDED_LOSSES["train_long"], steps["train_long"]
    alpha = {"global": expected["nitc_global"], "tse": expected["nitc_tse"]}
    alpha = expected.get(f"nitc_at_alpha_{soft_label}", alpha)
    model.soft_label = soft_label
    found = {name: value.item() for name, value in model.losses(step.outputs, step.batch).items()}
    assert found == {
        "loss_nitc": pytest.approx(alpha["global"], rel=CLOSE),
        "loss_nitc_local": pytest.approx(alpha["tse"], rel=CLOSE),
        "loss_ritc": pytest.approx(expected["ritc_global"], rel=CLOSE),
        "loss_ritc_local": pytest.approx(expected["ritc_tse"], rel=CLOSE),
        "loss_id": pytest.approx(expected["ret.id_loss"], rel=CLOSE),
        "loss_view": pytest.approx(expected["ret.view_loss"], rel=CLOSE),
        "loss_orthogonal": pytest.approx(expected["ret.ortho_loss"], rel=CLOSE),
    }
    if soft_label == 0.5:
        assert sum(found.values()) == pytest.approx(expected["total"], rel=CLOSE)


def test_short_captions_differ_in_the_local_losses_alone(model, steps):
    expected, step = RECORDED_LOSSES["train"], steps["train"]
    model.soft_label = 0.5
    found = {name: value.item() for name, value in model.losses(step.outputs, step.batch).items()}
    assert found["loss_nitc"] == pytest.approx(expected["nitc_global"], rel=CLOSE)
    assert found["loss_ritc"] == pytest.approx(expected["ritc_global"], rel=CLOSE)
    assert found["loss_id"] == pytest.approx(expected["ret.id_loss"], rel=CLOSE)
    assert found["loss_nitc_local"] == pytest.approx(expected["nitc_tse"], rel=0.1)  # padding is in its statistics
    assert found["loss_nitc_local"] != pytest.approx(expected["nitc_tse"], rel=CLOSE)


@pytest.mark.parametrize(("place", "block"), enumerate(BLOCKS))
def test_decoupling_by_block(model, steps, place, block):
    expected, step = RECORDED_LOSSES["train"], steps["train"]
    terms = model.decoupling(step.outputs.images.routed[place : place + 1], step.batch.views)
    assert terms["loss_view"].item() == pytest.approx(expected["view_loss_per_block"][str(block)], rel=CLOSE)
    assert terms["loss_orthogonal"].item() == pytest.approx(expected["ortho_loss_per_block"][str(block)], rel=CLOSE)


def test_view_accuracy(steps):
    step = steps["train"]
    assert step.outputs.view_accuracy(step.batch.views).item() == pytest.approx(
        RECORDED_LOSSES["train"]["ret.view_acc"]
    )


def test_local_features_in_training(steps, recorded):
    outputs = steps["train_long"].outputs
    for name, features in (("v", outputs.images), ("t", outputs.texts)):
        assert_close(F.normalize(features.selected.features, dim=1), recorded[f"train_long.{name}_tse_n"])
    assert outputs.texts.selected.indices.tolist() == recorded["train_long.t_tse_idx"].tolist()


def test_gradients_of_what_is_behind_the_towers(model, steps):
    step, norms = steps["train_long"], RECORDED_LOSSES["train_long_grad_norm"]
    model.soft_label = 0.5
    owners = ("image_local", "text_local", "classifier", "logit_scale")
    own = {name: value for name, value in model.named_parameters() if name.startswith(owners)}
    total = sum(model.losses(step.outputs, step.batch).values())
    gradients = dict(zip(own, torch.autograd.grad(total, list(own.values()), retain_graph=True), strict=True))
    found = {released_name(name): gradient.norm().item() for name, gradient in gradients.items()}
    assert set(found) == {key for key, norm in norms.items() if norm is not None}
    for key, norm in found.items():
        assert norm == pytest.approx(norms[key], rel=1e-3, abs=1e-4), key  # a shift before a batch norm: only rounding


def released_name(name: str) -> str:
    if match := re.fullmatch(r"(image|text)_local\.(\w+)\.(\w+)", name):
        return f"{RELEASED_PARTS[match[2]][match[1]]}.{match[3]}"
    return name
