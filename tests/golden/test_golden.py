"""ViSA with a released checkpoint does what the released code does, step by step, in evaluation and in training.

The recorded numbers and how they were made are in `golden/`. All of it goes through the converter.
"""

import re
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from golden import detweights
from golden.recording import arrays_of, assert_near, shapes_of
from torch import Tensor

from agreid_plugin.losses import LoadBalanceLoss
from agreid_plugin.methods.visa import Queries, ViSA, ViSAOutputs, build_backbone
from agreid_plugin.methods.visa.convert import EXPERT_PARTS, convert_visa
from agreid_plugin.nn.experts import Routing
from agreid_plugin.nn.graph import find_nearest_patches
from agreid_plugin.nn.key_mapping import Converted
from agreid_plugin.nn.vit import build_vit
from agreid_plugin.types import Batch

SHAPES = shapes_of("visa_cargo")
VIEWS = {"eval": [0, 1, 1, 0], "swap": [1, 0, 0, 1]}
EXPERTS = 8
CLOSE = 2e-5  # the released code differs from itself in float64 by up to 7e-6
assert_close = partial(assert_near, tolerance=CLOSE)
LOSSES = {
    "loss_cls_id": "loss_cls_id",
    "loss_triplet_id": "loss_triplet_id",
    "loss_cls_local": "loss_cls_local",
    "loss_triplet_local": "loss_triplet_local",
    "loss_view": "loss_cls_view",
    "loss_orthogonal": "loss_oreg",
    "loss_balance": "load_balance_loss",
}
HEADS = {"head": "heads", "local_head": "local_heads", "view_head": "view_heads"}


@dataclass
class Run:
    """What one batch gave."""

    batch: Batch
    outputs: ViSAOutputs
    features: Tensor


@dataclass
class Step:
    """What one training step gave, and the released keys of the model's gradients."""

    batch: Batch
    outputs: ViSAOutputs
    losses: dict[str, Tensor]
    statistics: dict[str, Tensor]
    gradients: dict[str, Tensor | None]


@pytest.fixture(scope="module")
def recorded() -> dict[str, np.ndarray]:
    return arrays_of("visa_cargo")


@pytest.fixture(scope="module")
def converted() -> Converted:
    return convert_visa(detweights.fill(SHAPES))


@pytest.fixture(scope="module")
def model(converted) -> ViSA:
    with torch.device("meta"):  # nothing is drawn that the file fills
        vit = build_vit("base", stride=12, extra_tokens=1, drop_path=0.0)
        model = ViSA(build_backbone(vit, variant="released"), 20, variant="released")
    unfilled, unexpected = model.load_state_dict(converted.state, strict=False, assign=True)
    assert not unexpected
    assert {name.split(".")[0] for name in unfilled} == {"view_predictor"}
    converted.state.clear()
    model.view_predictor.to_empty(device="cpu")
    for parameter in model.view_predictor.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    return model


@pytest.fixture(scope="module")
def runs(model) -> dict[str, Run]:
    """The images with their views, and with the views swapped."""
    images = normalized(detweights.images(4, 256, 128))
    return {name: evaluated(model, Batch(images=images, views=torch.tensor(views))) for name, views in VIEWS.items()}


@pytest.fixture(scope="module")
def step(model, runs) -> Step:
    """One training step from the same weights; it changes statistics, so the evaluations come first."""
    batch = Batch(
        images=normalized(detweights.images(8, 256, 128)),
        views=torch.tensor([0, 1] * 4),
        pids=torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]),
    )
    model.train()
    outputs = model(batch)
    losses = model.losses(outputs, batch)
    sum(losses.values()).backward()
    statistics = {name: value.clone() for name, value in model.named_buffers()}
    gradients = released_gradients({name: value.grad for name, value in model.named_parameters(remove_duplicate=False)})
    model.eval()
    return Step(batch, outputs, {name: value.detach() for name, value in losses.items()}, statistics, gradients)


def normalized(images: Tensor) -> Tensor:
    return (images - 127.5) / 127.5


def evaluated(model: ViSA, batch: Batch) -> Run:
    model.eval()
    with torch.no_grad():
        outputs = model(batch)
        return Run(batch, outputs, model.embed(outputs))


def released_gradients(ours: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
    """Return the gradients by the keys of the released code, stacked ones cut into theirs."""
    found: dict[str, Tensor | None] = {}
    groups = ("share", "sky", "ground")
    for name, gradient in ours.items():
        if match := re.fullmatch(r"backbone\.queries\.experts\.(\w+)\.?(\w*)", name):
            parts = {ours_name: released for released, ours_name in EXPERT_PARTS.items()} | {"tokens": "prompt"}
            part = ".".join(filter(None, [parts[match[1]], match[2]]))
            for number, own in enumerate(gradient):
                group, place = divmod(number, EXPERTS)
                found[f"backbone.{groups[group]}_experts.{place}.{part}"] = own
        elif match := re.fullmatch(r"backbone\.queries\.(shared|view)_router\.(\w+)", name):
            for group, own in zip(groups[:1] if match[1] == "shared" else groups[1:], gradient, strict=True):
                found[f"backbone.{group}_router.gate.{match[2]}"] = own
        elif name == "backbone.encoder.view_tokens":
            for group, own in zip(groups[1:], gradient.squeeze(0), strict=True):
                found[f"backbone.base.view_token_{group}"] = own
        elif name == "view_head.classifier.weight":
            found["view_heads.weight"] = gradient.flip(0)
        elif not name.startswith("view_predictor."):
            found[released_name(name)] = gradient
    return found


def released_name(name: str) -> str:
    for pattern, replacement in (
        (r"backbone\.encoder\.vit\.blocks\.11\.", "backbone.b1.0."),
        (r"backbone\.encoder\.vit\.norm\.", "backbone.b1.1."),
        (r"backbone\.encoder\.vit\.", "backbone.base."),
        (r"backbone\.fusion\.(invariant|specific)\.graph\.weight", "backbone.share_gcn.gcn_weights"),
        (r"backbone\.fusion\.invariant\.norm", "backbone.norm_share"),
        (r"backbone\.fusion\.specific\.norm", "backbone.norm_view"),
        (r"backbone\.fusion\.token", "backbone.out_token"),
        (r"backbone\.fusion\.fusion\.norm2", "backbone.final_attn_token_to_image.norm3"),
        (r"backbone\.fusion\.fusion\.norm1", "backbone.final_attn_token_to_image.norm2"),
        (r"backbone\.fusion\.fusion", "backbone.final_attn_token_to_image"),
        (r"head\.norm\.", "heads.bottleneck.0."),
        (r"head\.classifier\.", "heads."),
    ):
        name, changed = re.subn(pattern, replacement, name)
        if changed:
            break
    return name


def routings(queries: Queries, views: Tensor) -> dict[str, tuple[Tensor, Routing]]:
    """Return each released router's rows and what it decided for them."""
    found = {"share": (torch.arange(len(views)), queries.shared)}
    for view, name in enumerate(("sky", "ground")):
        (rows,) = torch.where(views == view)
        one = queries.by_view
        found[name] = (rows, Routing(one.logits[rows], one.experts[rows], one.weights[rows]))
    return found


def test_generator_draws_what_was_recorded(recorded):
    assert int(detweights.images(8, 256, 128).sum(dtype=torch.float64)) == recorded["images_sum"]
    for (key, shape), expected in zip(SHAPES.items(), recorded["weight_sums"], strict=True):
        if np.prod(shape) < 10_000:
            drawn = detweights.tensor_for(key, shape).sum(dtype=torch.float64).item()
            assert drawn == pytest.approx(expected, abs=1e-4), key


def test_dropped_and_kept_parameters(converted, model):
    kept = sum(parameter.numel() for parameter in model.backbone.parameters())
    dropped = sum(int(np.prod(SHAPES[key])) for key in converted.dropped)
    assert (kept, len(converted.dropped), dropped) == (235_583_256, 112, 36_188_928)
    assert kept + dropped == 271_772_184  # the paper says 271.77 M


@pytest.mark.parametrize("name", VIEWS)
def test_features_are_those_recorded(runs, recorded, name):
    assert_close(runs[name].features, recorded[f"{name}.feat"])


def test_the_views_matter(runs):
    assert (runs["eval"].features - runs["swap"].features).abs().max() > 1


def test_encoded_tokens(runs, recorded):
    features = runs["eval"].outputs.features
    assert_close(features.encoded.identity, recorded["eval.inv"])
    assert_close(features.encoded.view, recorded["eval.view"])
    assert_close(features.local, recorded["eval.local"])


def test_tokens_between_the_blocks(model, recorded):
    steps, seen = (0, 1, 6, 11), []
    encoder = model.backbone.encoder
    handles = [
        encoder.vit.blocks[number].register_forward_pre_hook(lambda _, tokens: seen.append(tokens[0]))
        for number in steps
    ]
    with torch.no_grad():
        encoder(normalized(detweights.images(2, 256, 128)), torch.tensor(VIEWS["eval"][:2]))
    for handle in handles:
        handle.remove()
    for found, expected in zip(seen, recorded["eval.layer_tokens"], strict=True):
        assert_close(found[:, [0, 1, 2, -1]], expected, tolerance=1e-4)


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("router", ["share", "sky", "ground"])
def test_routers(runs, recorded, name, router):
    run = runs[name]
    rows, routing = routings(run.outputs.features.queries, run.batch.views)[router]
    assert rows.tolist() == recorded[f"{name}.router_{router}_rows"].tolist()
    assert_close(routing.logits, recorded[f"{name}.router_{router}_logits"])
    assert routing.experts.tolist() == recorded[f"{name}.router_{router}_topk_idx"].tolist()
    assert_close(routing.weights, recorded[f"{name}.router_{router}_topk_weight"])
    balance = LoadBalanceLoss(1.0)([(routing.probabilities, None)])
    assert balance.item() == pytest.approx(float(recorded[f"{name}.router_{router}_lb"]), abs=CLOSE)


@pytest.mark.parametrize("router", ["share", "sky", "ground"])
def test_experts(model, runs, recorded, router):
    run = runs["eval"]
    features = run.outputs.features
    rows, routing = routings(features.queries, run.batch.views)[router]
    vectors = (features.encoded.identity if router == "share" else features.encoded.view)[rows]
    first = EXPERTS * ("share", "sky", "ground").index(router)
    with torch.no_grad():
        tokens = model.backbone.queries.experts(vectors.repeat_interleave(2, dim=0), routing.experts.flatten() + first)
    assert_close(tokens[:, 0].unflatten(0, (-1, 2)), recorded[f"eval.expert_{router}_token0"])


@pytest.mark.parametrize("branch", ["inv", "spe"])
def test_queries_and_their_graphs(model, runs, recorded, branch):
    features = runs["eval"].outputs.features
    encoded, fusion = features.encoded, model.backbone.fusion
    queries, feature, graph = {
        "inv": (features.queries.invariant, encoded.identity, fusion.invariant),
        "spe": (features.queries.specific, encoded.view, fusion.specific),
    }[branch]
    assert_close(queries[:, [0, -1]], recorded[f"eval.Q_{branch}"])
    with torch.no_grad():
        moved = graph.move(queries, feature, encoded.patches)
        joined = graph(queries, feature, encoded.patches)
    assert_close(moved[:, [0, -1]], recorded[f"eval.gcn_{branch}"])
    assert_close(joined[:, [0, -1]], recorded[f"eval.graph_{branch}"])


@pytest.mark.parametrize("name", [*VIEWS, "train"])
def test_chosen_patches(runs, step, recorded, name):
    encoded = (step if name == "train" else runs[name]).outputs.features.encoded
    for branch, feature in (("inv", encoded.identity), ("spe", encoded.view)):
        chosen = find_nearest_patches(feature.detach().unsqueeze(1), encoded.patches.detach(), 64).squeeze(1)
        assert chosen.sort().values.tolist() == recorded[f"{name}.topk_patch_{branch}"].tolist()


def test_routing_in_training(step, recorded):
    for router, (_, routing) in routings(step.outputs.features.queries, step.batch.views).items():
        assert routing.experts.tolist() == recorded[f"train.router_{router}_topk_idx"].tolist()
        assert_close(routing.logits, recorded[f"train.router_{router}_logits"])


def test_logits_are_those_recorded(step, recorded):
    assert_close(step.outputs.identity.logits, recorded["train.heads.logits"])
    assert_close(step.outputs.local.logits, recorded["train.local_heads.logits"])
    assert_close(step.outputs.view.logits.flip(1), recorded["train.view_heads.logits"])  # there, aerial is 1


def test_losses_are_those_recorded(step, recorded):
    assert set(step.losses) == {*LOSSES, "loss_view_predictor"}  # the last is ours and reaches the predictor alone
    for ours, released in LOSSES.items():
        tolerance = 1e-9 if released == "load_balance_loss" else CLOSE
        assert step.losses[ours].item() == pytest.approx(float(recorded[f"train.loss.{released}"]), abs=tolerance), ours
    total = sum(step.losses[name].item() for name in LOSSES)
    assert total == pytest.approx(float(recorded["train.loss.TOTAL"]), abs=CLOSE)


@pytest.mark.parametrize("head", HEADS)
def test_running_statistics_after_the_step(step, recorded, head):
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert_close(step.statistics[f"{head}.norm.{name}"], recorded[f"train.bn.{HEADS[head]}.{name}"])


def test_every_gradient_has_the_recorded_norm(step, recorded):
    norms = dict(zip(SHAPES, recorded["train.grad_norm"].tolist(), strict=True))
    statistics = (".running_mean", ".running_var", ".num_batches_tracked")
    parameters = {key for key in SHAPES if not key.endswith(statistics)}
    compared = 0
    for key in sorted(parameters):
        gradient = step.gradients.get(key)
        found = 0.0 if gradient is None else gradient.norm().item()
        expected = 0.0 if np.isnan(norms[key]) else norms[key]
        if expected < 1e-6:  # dead there or without a place here, or an expert that nobody chose
            assert found < 1e-6, key
        else:
            assert found == pytest.approx(expected, rel=1e-4, abs=1e-9), key
            compared += 1
    assert not set(step.gradients) - parameters
    assert compared == sum(norm >= 1e-6 for norm in norms.values())


def test_raw_gradients(step, recorded):
    names = [name for name in recorded if name.startswith("train.grad.")]
    assert names
    for name in names:
        key, _, cut = name.removeprefix("train.grad.").partition("[")
        expected = recorded[name]
        gradient = step.gradients[key]
        if cut:
            gradient = gradient[tuple(slice(length) for length in expected.shape)]
        found = gradient.reshape(expected.shape)
        assert_close(found, expected, tolerance=5e-5 * np.abs(expected).max())
