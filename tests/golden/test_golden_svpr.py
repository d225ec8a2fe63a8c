"""SVPR-ReID with a released checkpoint does what the released code does, step by step.

The recorded numbers and how they were made are in `golden/`. All of it goes through the converter.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from golden import detweights_clip
from golden.recording import arrays_of, assert_near, shapes_of
from small_svpr import THREE_WORDS
from torch import Tensor, nn

from agreid_plugin.data.attributes import QUT_GROUPS, AttributeSchema
from agreid_plugin.methods.svpr import SVPR, RefinementOutputs, SVPRFeatures, SVPROutputs
from agreid_plugin.methods.svpr.asmoe import AttributeFeatures
from agreid_plugin.methods.svpr.convert import convert_svpr
from agreid_plugin.nn.clip_build import build_clip
from agreid_plugin.nn.key_mapping import Converted
from agreid_plugin.types import UNKNOWN, Batch

SHAPES = shapes_of("svpr_agreidv1")
SCHEMA = AttributeSchema(QUT_GROUPS)
VIEWS, PLATFORMS = torch.tensor([1, 1, 0]), torch.tensor([1, 2, 0])  # ours, of the released labels 0, 1, 2
CLOSE = 2e-5  # the released code differs from itself in float64 by up to 5e-6
LOSSES = {
    "loss_cls": ("ce_cls", 0.25),
    "loss_cls_cvpr": ("ce_cvpr", 0.25 / 2),
    "loss_cls_local": ("ce_local", 0.25 / 2),
    "loss_triplet": ("tri_cls_inv", 1),
    "loss_triplet_cvpr": ("tri_cvpr", 1 / 3),
    "loss_triplet_local": ("tri_local", 1 / 3),
    "loss_triplet_entering": ("tri_x11", 1 / 3),
    "loss_view": ("ce_view", 1),
    "loss_orthogonal": ("ortho", 1),
    "loss_attributes": ("attr_sum", 0.05),
}


@dataclass
class Run:
    """What images 0 and 1 gave with their own labels, then image 0 with the labels 1 and 2."""

    outputs: SVPROutputs
    features: Tensor
    calls: dict[str, list[tuple[Any, Any]]]  # inputs and outputs of some modules


@pytest.fixture(scope="module")
def recorded() -> dict[str, np.ndarray]:
    return arrays_of("svpr_agreidv1")


@pytest.fixture(scope="module")
def converted(recorded) -> Converted:
    released = detweights_clip.fill(SHAPES)
    assert detweights_clip.fingerprint(released) == recorded["fingerprint"]  # numpy still draws the same numbers
    return convert_svpr(released)


@pytest.fixture(scope="module")
def model(converted) -> SVPR:
    with torch.device("meta"):  # nothing is drawn that the file fills
        clip = build_clip("ViT-B-16", text_length=100, quick_gelu=True)
        model = SVPR(clip.image, clip.text, 20, schema=SCHEMA, variant="released", words=THREE_WORDS)
    unfilled, unexpected = model.load_state_dict(converted.state, strict=False, assign=True)
    assert not unexpected
    assert {name.split(".")[0] for name in unfilled} == {"view_predictor"}
    converted.state.clear()
    text = model.backbone.text.tower.text
    text.attn_mask = text.build_causal_mask()
    return model.eval()


@pytest.fixture(scope="module")
def run(model) -> Run:
    backbone, calls = model.backbone, defaultdict(list)
    watched = {
        "view_inverse": backbone.vdfe.token.inverse,
        "attribute_inverse": backbone.asmoe.inverse,
        "context": backbone.asmoe.attention,
        "token_attention": backbone.vdfe.token.attention,
        "block": backbone.cvpr.block,
        "scores": backbone.cvpr.scores,
        "refinement": backbone.cvpr,
    }
    for name, module in watched.items():
        module.register_forward_hook(lambda _, inputs, made, name=name: calls[name].append((inputs, made)))
    images = detweights_clip.normalize(detweights_clip.images(2, 256, 128), "svpr")[[0, 1, 0, 0]]
    labels = [0, 1, 1, 2]
    with torch.no_grad():
        outputs = model(Batch(images=images, views=VIEWS[labels], platforms=PLATFORMS[labels]))
    return Run(outputs, model.embed(outputs), calls)


def assert_close(found: Tensor, expected: np.ndarray, tolerance: float = CLOSE) -> None:
    """As many images as were recorded, the first ones."""
    assert_near(found[: len(expected)], expected, tolerance)


def test_dropped_parts(converted):
    counts = {what.split(":")[0]: len(keys) for what, keys in converted.unused.items()}
    assert counts == {
        "further stages of the refinement": 62,
        "scale of CLIP's similarities": 1,
        "embeddings of words": 3,
        "norms inside the attentions": 10,
        "norms inside the MLPs": 8,
        "norm of the refinement": 2,
    }


def test_the_sentence_at_test_time(model, recorded):
    text = model.backbone.text
    sentence = text.sentence("attributes", (UNKNOWN,) * len(SCHEMA))
    assert text.tower.tokenize([sentence])[0].tolist() == recorded["tokens"].tolist()


def test_features_are_those_recorded(run, recorded):
    assert_close(run.features, recorded["eval.feat"])
    assert_close(run.features[:, 2 * 768 : 3 * 768], recorded["eval.feat"][:, 2 * 768 : 3 * 768], 1e-6)  # local


@pytest.mark.parametrize("view", [1, 2])
def test_features_with_other_views(run, recorded, view):
    expected = recorded[f"view{view}.feat"]
    assert_close(run.features[1 + view :], expected)
    assert np.abs(run.features[:1].numpy() - expected).max() > 0.05  # the view matters


def test_the_text_side(run, recorded):
    ((prompts, key), _), *_ = run.calls["token_attention"]
    assert_close(prompts[..., :64], recorded["eval.view_prompts_out"])
    assert_close(key.squeeze(1), recorded["eval.view_word_out"])
    for name, raw, token in (
        ("view_inverse", "view_raw", "f_view_t"),
        ("attribute_inverse", "text_raw", "f_attr_t"),
    ):
        ((vector,), made), *_ = run.calls[name]
        assert_close(vector, recorded[f"eval.{raw}"])
        assert_close(made, recorded[f"eval.{token}"])


def test_encoded_tokens(run, recorded):
    features = run.outputs.features
    assert_close(features.entering, recorded["eval.x11_cls"])
    assert_close(features.view, recorded["eval.view_out"])
    (_, _, patches), _ = run.calls["refinement"][0]
    assert_close(patches[..., :8], recorded["eval.x12_patches_c8"])


def test_attributes(run, recorded):
    made = run.outputs.features.attributes
    assert_close(run.calls["context"][0][1].squeeze(1), recorded["eval.attr_u"])
    assert_close(made.gates, recorded["eval.attr_gate_logits"])
    assert_close(made.tokens[..., :64], recorded["eval.attr_expert_out"])
    assert_close(made.scores, recorded["eval.attr_scores"])
    assert made.chosen[:2].tolist() == recorded["eval.attr_topk"].tolist()
    assert_close(torch.cat(made.logits, dim=1), recorded["eval.attr_logits"])


def test_stages(run, recorded):
    places = torch.arange(128).expand(4, -1)
    assert_close(run.calls["block"][0][0][0].squeeze(1), recorded["eval.cvpr_q0"])
    for stage, chosen in enumerate(run.outputs.features.refined.chosen, start=1):
        scores = torch.full((4, 128), -1.0).scatter(1, places, run.calls["scores"][stage - 1][1])
        assert_close(scores, recorded[f"eval.cvpr_score{stage}"], 1e-5)  # the last digits are the processor's
        assert chosen[:2].tolist() == recorded[f"eval.cvpr_idx{stage}"].tolist()
        assert_close(run.calls["block"][stage - 1][1][0].squeeze(1), recorded[f"eval.cvpr_q{stage}"])
        places = chosen


def test_where_refined_patches_are_written(run, recorded):
    refined = run.outputs.features.refined.patches[:2, :, :8]
    before, updated = recorded["eval.x12_patches_c8"], recorded["eval.cvpr_patches_c8"]
    assert_close(refined, before + 0.1 * updated)


@pytest.fixture(scope="module")
def step(model, run, recorded) -> tuple[SVPROutputs, Batch]:
    """The heads in training on the recorded features; it changes statistics, so the evaluation comes first."""
    values = {name.removeprefix("train."): torch.from_numpy(np.asarray(value)) for name, value in recorded.items()}
    logits = list(values["attr_logits"].split(SCHEMA.sizes, dim=1))
    nothing = torch.empty(0)
    features = SVPRFeatures(
        values["cls_inv"],
        values["x11_cls"],
        values["view_out"],
        AttributeFeatures(nothing, logits, nothing, nothing, nothing, nothing),
        RefinementOutputs(values["cvpr"], values["local"], nothing, ()),
    )
    labels = values["views"].long()
    data = Batch(
        pids=values["pids"].long(),
        views=VIEWS[labels],
        platforms=PLATFORMS[labels],
        attributes=values["attributes"].long(),
    )
    heads: list[nn.Module] = [model.head, model.cvpr_head, model.local_head, model.view_head]
    parts = [*features.parts, features.view]
    made = [head.train()(part) for head, part in zip(heads, parts, strict=True)]
    return SVPROutputs(features, *made, predicted=torch.zeros(8, 3)), data


def test_logits_are_those_recorded(step, recorded):
    outputs = step[0]
    for head, name in (
        (outputs.identity, "cls"),
        (outputs.cvpr, "cvpr"),
        (outputs.local, "local"),
        (outputs.view, "view"),
    ):
        assert_close(head.logits, recorded[f"train.logits_{name}"])


def test_losses_are_those_recorded(model, step, recorded):
    losses = {name: loss.item() for name, loss in model.losses(*step).items()}
    assert set(losses) == {*LOSSES, "loss_view_predictor"}  # the last is ours
    for ours, (released, weight) in LOSSES.items():
        assert losses[ours] == pytest.approx(weight * float(recorded[f"train.loss.{released}"]), rel=1e-5), ours
    total = sum(losses[name] for name in LOSSES)
    assert total == pytest.approx(float(recorded["train.loss.total"]), rel=1e-6)


def test_running_statistics_after_the_step(model, step, recorded):
    assert_close(model.head.norm.running_mean, recorded["train.bn_header_running_mean"], 1e-6)
    assert_close(model.head.norm.running_var, recorded["train.bn_header_running_var"], 1e-6)
