"""Text-to-image retrieval inside the host: TAG-CLIP, its training, evaluation, selection and resuming."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import assert_one_line, recipes
from fastreid.evaluation import inference_on_dataset
from fastreid.modeling import build_model
from fastreid.utils.events import EventStorage
from PIL import Image
from small_fastreid import write_tiny
from small_text import (
    PROTOCOLS,
    SHAPE,
    TINY,
    annotations,
    batch_of,
    configured,
    write_annotations,
)

from agreid_plugin.data.captions import clean
from agreid_plugin.evaluation import load_features, select_query_gallery
from agreid_plugin.hosts.fastreid.commands.explain import explain
from agreid_plugin.hosts.fastreid.data.transforms import build_transforms
from agreid_plugin.hosts.fastreid.engine.evaluator import MultiProtocolEvaluator, test_sets
from agreid_plugin.hosts.fastreid.engine.trainer import Trainer
from agreid_plugin.hosts.fastreid.models.tag_clip import SoftLabelRamp
from agreid_plugin.nn.checkpoints import read_checkpoint

pytest_plugins = ("small_text",)

test_sets.__test__ = False  # the function's name, not a test's

RECIPES = recipes("TAG-CLIP", "TBPS-CLIP")
TBPS = ("BLOCK vit", "TSE False", "VIEW_LOSS False", "ORTHO_LOSS False", "ID_LOSS False")


def of_tbps() -> list[str]:
    return [part for entry in TBPS for part in f"MODEL.TAG_CLIP.{entry}".split()]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_recipe_builds_a_model_that_takes_a_step(path):
    """At its own settings but for the size of the towers."""
    small = [part for key, value in SHAPE.items() for part in (f"MODEL.CLIP.{key}", value)]
    small += ["MODEL.BACKBONE.PRETRAIN", False, "MODEL.CLIP.QUICK_GELU", "yes", "MODEL.TAG_CLIP.AT", [1]]
    cfg = configured(path, *small, "MODEL.TAG_CLIP.TSE_WIDTH", 10)
    model = build_model(cfg).train()
    image = build_transforms(cfg, is_train=True)(picture(cfg))
    with EventStorage() as storage:
        losses = model(batch_of(model, torch.stack([image] * 4)))
    sum(losses.values()).backward()
    assert all(name.startswith("loss_") and torch.isfinite(value) for name, value in losses.items())
    assert not [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    if path.parent.name == "TBPS-CLIP":
        assert set(losses) == {"loss_nitc", "loss_ritc"}
        assert "view_accuracy" not in storage.latest()
    else:
        assert {"loss_nitc_local", "loss_ritc_local", "loss_id", "loss_view", "loss_orthogonal"} < set(losses)
        assert 0 <= storage.latest()["view_accuracy"][0] <= 1
    optimizer, _ = Trainer.build_optimizer(cfg, model)
    assert {group["betas"] for group in optimizer.param_groups} == {(0.9, 0.98)}


def picture(cfg) -> Image.Image:
    return Image.new("RGB", tuple(reversed(cfg.INPUT.SIZE_TRAIN)), (10, 200, 90))


def test_a_training_from_end_to_end(tiny_text, tmp_path, fastreid_command):
    run = tmp_path / "run"
    outcome = fastreid_command("train", "--config", tiny_text)
    assert outcome.code == 0, outcome.err
    results = json.loads((run / "results.json").read_text())["TAG-PEDES"]
    assert list(results) == PROTOCOLS
    assert results["T2I"]["queries"] == 24 * 2 - 1  # of one image there is one caption
    assert results["T2I"]["gallery"] == 24
    assert results["T2I-aerial"]["gallery"] == results["T2I-ground"]["gallery"] == 12
    for split in ("training", "test"):
        assert outcome.out.count(f"1 of 47 {split} captions have more than 77 tokens: cut") == 1
    assert "TAG-PEDES has no validation split: no best model is chosen, the last epoch counts" in outcome.out

    lines = [json.loads(line) for line in (run / "metrics.json").read_text().splitlines()]
    told = [line["view_accuracy"] for line in lines if "view_accuracy" in line]
    assert len(told) == 4  # 47 pairs make two batches an epoch
    assert all(0 <= value <= 1 for value in told)
    assert [line["soft_label"] for line in lines if "soft_label" in line] == [0, 0.25, 0.5, 0.5]
    assert any("TAG-PEDES/T2I-aerial/mAP" in line for line in lines)
    assert not any("metric" in line for line in lines)
    assert not (run / "model_best.pth").exists()

    weights = ("--weights", run / "model_final.pth", "--output", tmp_path / "e")
    outcome = fastreid_command("eval", "--config", tiny_text, *weights)
    assert outcome.code == 0, outcome.err
    assert json.loads((tmp_path / "e" / "results.json").read_text())["TAG-PEDES"] == results


def test_a_resumed_run_goes_on_where_it_was(tiny_text, tmp_path, fastreid_command):
    run = tmp_path / "run"
    assert fastreid_command("train", "--config", tiny_text).code == 0
    whole = read_checkpoint(run / "model_final.pth")
    for name in ("model_final.pth", "results.json"):
        (run / name).unlink()
    (run / "last_checkpoint").write_text("model_0000.pth")  # as if it had ended after its first epoch
    outcome = fastreid_command("train", "--config", tiny_text, "--resume")
    assert outcome.code == 0, outcome.err
    assert "Starting training from epoch 1" in outcome.out
    resumed = read_checkpoint(run / "model_final.pth")
    rates = [[group["lr"] for group in each["optimizer"]["param_groups"]] for each in (whole, resumed)]
    assert rates[0] == pytest.approx(rates[1])
    assert len(set(rates[0])) == 2
    assert max(rates[0]) == pytest.approx(10 * min(rates[0]))
    assert resumed["lr_sched"]["last_epoch"] == whole["lr_sched"]["last_epoch"] == 2
    lines = [json.loads(line) for line in (run / "metrics.json").read_text().splitlines()]
    assert [line["soft_label"] for line in lines if "soft_label" in line] == [0, 0.25, 0.5, 0.5]
    moments = [each["optimizer"]["state"][0]["step"].item() for each in (whole, resumed)]
    assert moments == [4, 4]


def test_soft_labels_grow_over_the_first_epoch(tiny_text):
    class Stub:
        iters_per_epoch, storage = 10, EventStorage()

    ramp, trainer = SoftLabelRamp(configured(tiny_text)), Stub()
    ramp.trainer, trainer.model = trainer, build_model(configured(tiny_text))
    shares = []
    for trainer.iter in (0, 1, 5, 10, 25):
        ramp.before_step()
        shares.append(trainer.model.soft_label)
    assert shares == pytest.approx([0, 0.05, 0.25, 0.5, 0.5])


@pytest.fixture
def with_val(tmp_path, captioned_pictures) -> Path:
    """The configuration on a copy whose last training person is there to validate with."""
    root = shutil.copytree(captioned_pictures, tmp_path / "data")
    train = annotations(root / "TAG-PEDES", "train")
    last = max(entry["id"] for entry in train)
    write_annotations(root / "TAG-PEDES", "train", [entry for entry in train if entry["id"] != last])
    write_annotations(root / "TAG-PEDES", "val", [entry for entry in train if entry["id"] == last])
    return write_tiny(tmp_path, TINY, root)


def test_the_best_model_is_chosen_on_the_validation_split(with_val, tmp_path, fastreid_command):
    run = tmp_path / "run"
    outcome = fastreid_command("train", "--config", with_val, "SOLVER.IMS_PER_BATCH", 8)
    assert outcome.code == 0, outcome.err
    results = json.loads((run / "results.json").read_text())["TAG-PEDES"]
    assert list(results) == [*PROTOCOLS, "T2I-val"]
    assert results["T2I-val"]["gallery"] == 8
    assert "TAG-PEDES: the best model is chosen by the 8 images to validate with" in outcome.out
    best = read_checkpoint(run / "model_best.pth")
    assert best["metric"] == 100  # one person alone: every image is a match
    outcome = fastreid_command("eval", "--config", with_val, "--weights", run / "model_best.pth")
    assert list(json.loads((run / "eval" / "results.json").read_text())["TAG-PEDES"]) == PROTOCOLS


def test_the_test_split_selects_only_if_named(tiny_text, tmp_path, fastreid_command):
    outcome = fastreid_command("train", "--config", tiny_text, "TEST.BEST_METRIC", "TAG-PEDES/T2I/mAP")
    assert outcome.code == 0, outcome.err
    results = json.loads((tmp_path / "run" / "results.json").read_text())["TAG-PEDES"]
    final = read_checkpoint(tmp_path / "run" / "model_final.pth")
    assert final["metric"] == pytest.approx(results["T2I"]["mAP"])
    assert (tmp_path / "run" / "model_best.pth").exists()


def evaluated(cfg, model) -> MultiProtocolEvaluator:
    (evaluator,) = Trainer.run_test_sets(cfg, model).values()
    return evaluator


def test_features_are_the_models_own_and_numbers_follow_from_them(tiny_text):
    cfg = configured(tiny_text)
    torch.manual_seed(0)
    model = build_model(cfg).eval()
    evaluator = evaluated(cfg, model)
    features = evaluator.evaluation.features
    captions = [caption for record in features.records for caption in record.captions]
    with torch.no_grad():
        texts = model.encode_texts(model.text.tokenize([clean(caption) for caption in captions])).embedding
    np.testing.assert_allclose(features.captions[0], texts, atol=1e-5)

    pids = np.array([record.pid for record in features.records])
    asked = np.array([record.pid for record in features.records for _ in record.captions])
    order = np.argsort(-texts.numpy() @ features.images[0].T, axis=1)
    hits = pids[order] == asked[:, None]
    precision = np.cumsum(hits, axis=1) / np.arange(1, hits.shape[1] + 1)
    expected = 100 * np.mean((precision * hits).sum(1) / hits.sum(1))
    assert evaluator.numbers["T2I/mAP"] == pytest.approx(expected, abs=1e-3)
    assert evaluator.numbers["T2I/Rank-1"] == pytest.approx(100 * hits[:, 0].mean(), abs=1e-3)

    query, gallery, query_meta, _ = select_query_gallery(features, evaluator.test_set.protocols["T2I"])
    assert len(query) == len(query_meta.pid) == len(captions)
    assert len(gallery) == len(features.records)


def test_flip_testing_mirrors_images_and_leaves_captions(tiny_text):
    cfg = configured(tiny_text)
    torch.manual_seed(0)
    model = build_model(cfg).eval()
    flips = (configured(tiny_text, "TEST.FLIP.ENABLED", flip) for flip in (False, True))
    plain, flipped = (evaluated(each, model).evaluation.features for each in flips)
    assert not np.allclose(plain.images[0], flipped.images[0])
    np.testing.assert_array_equal(plain.captions[0], flipped.captions[0])


def test_the_evaluator_serves_the_hosts_loop(tiny_text):
    cfg = configured(tiny_text)
    model = build_model(cfg)
    (test_set,) = test_sets(cfg)
    loader, evaluator = Trainer.build_evaluator(cfg, test_set)
    assert len(list(loader)) == len(loader)
    assert set(inference_on_dataset(model, loader, evaluator)) > {"T2I/mAP", "T2I-aerial/Rank-1"}


def test_two_processes_train_and_evaluate_as_one_does(tiny_text, tmp_path, fastreid_command):
    """With ten of a batch in each process; the numbers of both are by the main one's running statistics."""
    outcome = fastreid_command("train", "--config", tiny_text, "--num-processes", 2, "TEST.IMS_PER_BATCH", 20)
    assert outcome.code == 0, outcome.err
    weights = ("--weights", tmp_path / "run" / "model_final.pth", "--output", tmp_path / "one")
    assert fastreid_command("eval", "--config", tiny_text, *weights, "TEST.IMS_PER_BATCH", 10).code == 0
    two, one = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("run", "one"))
    assert two == one


def test_saved_features_keep_the_captions(tiny_text, tmp_path, fastreid_command):
    assert fastreid_command("train", "--config", tiny_text, *of_tbps(), "SOLVER.WARMUP_ITERS", 0).code == 0
    weights, file = ("--weights", tmp_path / "run" / "model_final.pth"), tmp_path / "features.npz"
    saved = ("--save-features", file, "--output", tmp_path / "a", "--num-machines", 1, *of_tbps())
    assert fastreid_command("eval", "--config", tiny_text, *weights, *saved).code == 0
    calibrated = ("--features", file, "--calibrate", "--output", tmp_path / "b")
    outcome = fastreid_command("eval", "--config", tiny_text, *calibrated)
    assert outcome.code == 0, outcome.err
    first, second = (json.loads((tmp_path / name / "results.json").read_text()) for name in "ab")
    assert first == second
    assert load_features(file).captions[0].shape[0] == 47
    assert (tmp_path / "b" / "calibration_TAG-PEDES_T2I.json").exists()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["INPUT.CAPTIONS", "both"], ["INPUT.CAPTIONS 'both' unknown", "all, one"]),
        (["INPUT.TEXT.WORD_DELETION", "2"], ["INPUT.TEXT: deletion=2.0 should be between 0 and 1"]),
        (["TEST.RERANK.ENABLED", "True"], ["TAG-PEDES/T2I asks with sentences", "TEST.RERANK"]),
        (["TEST.BEST_METRIC", "TAG-PEDES/T2I-val/mAP"], ["TEST.BEST_METRIC 'TAG-PEDES/T2I-val/mAP' unknown"]),
        (["MODEL.TAG_CLIP.BLOCK", "vit"], ["MODEL.TAG_CLIP: view_loss and ortho_loss need block='hr_moe'"]),
        (["MODEL.TAG_CLIP.OBJECTIVE", "sdn"], ["MODEL.TAG_CLIP: objective 'sdn' unknown (did you mean sdm?)"]),
        (["MODEL.LOSSES.NAME", "['CrossEntropyLoss']"], ["built into TAGCLIP already", "MODEL.TAG_CLIP.ID_WEIGHT"]),
        (["MODEL.BACKBONE.NAME", "build_resnet_backbone"], ["does not suit MODEL.META_ARCHITECTURE TAGCLIP"]),
        (["SOLVER.BETAS", "[0.9]"], ["SOLVER.BETAS takes two numbers"]),
        (["SOLVER.LR_FACTORS", "['image_local']"], ["SOLVER.LR_FACTORS takes rows [module, factor]"]),
        (["SOLVER.SCHED_STEP", "step"], ["SOLVER.SCHED_STEP 'step' unknown"]),
        (["SOLVER.SCHED", "MultiStepLR"], ["SOLVER.SCHED_STEP iteration is for CosineAnnealingLR"]),
        (["SOLVER.BASE_LR", "0"], ["SOLVER.BASE_LR is 0, but must be above 0"]),
        (["SOLVER.OPT", "SGD"], ["SOLVER.BETAS is for Adam and its kin, SOLVER.OPT is SGD"]),
    ],
)
def test_mistakes_are_one_line(tiny_text, fastreid_command, overrides, words):
    assert_one_line(fastreid_command("train", "--config", tiny_text, *overrides), *words)


def test_pairs_are_what_explaining_counts(tiny_text):
    # 24 images, two captions each but for one image with one
    batch = ["SOLVER.IMS_PER_BATCH", "25", "SOLVER.WARMUP_ITERS", "0"]
    found = {title: dict(rows) for title, rows in explain(tiny_text, batch).items()}
    assert "refused" not in found["training sets"]
    assert found["optimizer"]["AdamW"].startswith("2 epochs of 1 iterations")
    found = dict(explain(tiny_text, [*batch, "INPUT.CAPTIONS", "one"])["training sets"])
    assert "the training set has 24 images, less than one batch" in found["refused"]


def test_images_without_captions_are_refused_by_explaining_too(tiny_text, market):
    sets = ["DATASETS.NAMES", "['Market1501']", "DATASETS.ROOT", str(market)]
    found = dict(explain(tiny_text, sets)["training sets"])
    assert "TAGCLIP learns from captions, but Market1501 has none" in found["refused"]


def test_sdm_and_further_losses(tiny_text):
    model = build_model(configured(tiny_text, "MODEL.TAG_CLIP.OBJECTIVE", "sdm", "MODEL.LOSSES.NAME", ["VIAL"])).train()
    with EventStorage():
        losses = model(batch_of(model, torch.rand(4, 3, 32, 16) * 255))
    assert {"loss_sdm", "loss_sdm_local", "loss_vial"} < set(losses)
    assert model.logit_scale is None


def test_patches_are_frozen_when_asked(tiny_text):
    for frozen in (True, False):
        model = build_model(configured(tiny_text, "MODEL.TAG_CLIP.FREEZE_PATCHES", frozen))
        assert model.image.tower.visual.conv1.weight.requires_grad is not frozen
        assert model.image.tower.visual.class_embedding.requires_grad
