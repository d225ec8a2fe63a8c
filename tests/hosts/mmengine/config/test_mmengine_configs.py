"""Recipes of both hosts say the same: learning rates, images, and the run; the models have a file of their own."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import PARAM_SCHEDULERS
from PIL import Image
from recipe_pairs import PROJECTS, RECIPES, both_forms, identities, name_of
from torch import nn
from torch.optim import SGD

from agreid_plugin.data.datasets import dataset_name
from agreid_plugin.hosts.fastreid.data.transforms import build_transforms
from agreid_plugin.hosts.fastreid.engine import hooks, solver
from agreid_plugin.hosts.fastreid.engine.trainer import Trainer

SAMPLERS = {
    "NaiveIdentitySampler": "agreid_plugin.IdentitySampler",
    "ViewBalancedIdentitySampler": "agreid_plugin.ViewBalancedIdentitySampler",
    "TrainingSampler": "DefaultSampler",
}
PLUGIN = "Example/example_plugin"  # of fast-reid
EPOCH = 27  # iterations, in the place of hundreds; 120 epochs are still longer than 2000 iterations of warm-up


@pytest.fixture(scope="module", params=RECIPES)
def recipe(request, described) -> SimpleNamespace:
    """Both forms of a recipe."""
    return both_forms(request.param, described)


def their_rates(cfg, bases):
    """Return fast-reid's rates of groups at every iteration, by its own hook."""
    optimizer = one_parameter_each(bases)
    schedulers = Trainer.build_lr_scheduler(cfg, optimizer, EPOCH)
    kind = solver.IterationScheduler if cfg.SOLVER.SCHED_STEP == "iteration" else hooks.hooks.LRScheduler
    hook = kind(optimizer, schedulers)
    hook.trainer = trainer = SimpleNamespace(
        warmup_iters=solver.warmup_iterations(cfg, EPOCH),
        delay_epochs=cfg.SOLVER.DELAY_EPOCHS,
        iters_per_epoch=EPOCH,
        grad_scaler=None,
        storage=SimpleNamespace(put_scalar=lambda *_, **__: None),
    )
    found = []
    for iteration in range(cfg.SOLVER.MAX_EPOCH * EPOCH):
        found.append([group["lr"] for group in optimizer.param_groups])
        trainer.iter, trainer.epoch = iteration, iteration // EPOCH
        optimizer.step()
        hook.after_step()
        if (iteration + 1) % EPOCH == 0:
            hook.after_epoch()
    return found


def our_rates(config, epochs, bases):
    """Return the rates of groups at every iteration, as mmengine's runner builds the schedule and its hook steps it."""
    optimizer = one_parameter_each(bases)
    scheduler = PARAM_SCHEDULERS.build(
        {"end": epochs, **config}, default_args={"optimizer": optimizer, "epoch_length": EPOCH}
    )
    assert not scheduler.by_epoch
    found = []
    for _ in range(epochs * EPOCH):
        found.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    return found


def one_parameter_each(bases):
    return SGD([{"params": [nn.Parameter(torch.zeros(1))], "lr": base} for base in bases], lr=1.0)


def test_the_learning_rate_is_the_same_at_every_iteration(recipe):
    base = recipe.yml.SOLVER.BASE_LR
    factors = {1.0, recipe.yml.SOLVER.BIAS_LR_FACTOR, *(factor for _, factor in recipe.yml.SOLVER.LR_FACTORS)}
    bases = [base * factor for factor in sorted(factors)]
    theirs = np.array(their_rates(recipe.yml, bases))
    ours = np.array(our_rates(recipe.py.param_scheduler, recipe.py.train_cfg.max_epochs, bases))
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    assert len(np.unique(ours[:, 0])) > 20
    assert ours[:, 0].max() == pytest.approx(base)


def test_images_are_the_same_to_the_last_pixel(recipe, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (90, 50, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    for is_train, loader in ((True, "train_dataloader"), (False, "val_dataloader"), (False, "test_dataloader")):
        theirs = build_transforms(recipe.yml, is_train)
        ours = Compose(recipe.py[loader].dataset.pipeline)
        for seed in range(12 if is_train else 1):
            torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)
            expected = theirs(Image.fromarray(pixels))
            torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)
            found = ours({"img_path": str(tmp_path / "image.png"), "gt_label": 0, "pid": 0})["inputs"]
            assert torch.equal(found, expected.float()), seed


def test_datasets_and_protocols_are_the_same(recipe):
    yml, agsynth = recipe.yml, recipe.yml.DATASETS.AGSYNTH
    for split in ("train", "val", "test"):
        dataset = recipe.py[f"{split}_dataloader"].dataset
        assert dataset.split == split
        assert [dataset_name(dataset.name)] == [dataset_name(name) for name in yml.DATASETS.NAMES]
        assert dataset.get("protocols", []) == ([] if split == "train" else yml.TEST.PROTOCOLS)
        if agsynth.IDS:
            made = {"ids": agsynth.IDS, "images_per_id": agsynth.IMAGES_PER_ID, "size": tuple(agsynth.SIZE)}
            assert (dataset.data_root, dataset.agsynth) == (yml.DATASETS.ROOT, made)
        else:
            assert not yml.DATASETS.ROOT
            assert "agsynth" not in dataset
    assert yml.DATASETS.NAMES == yml.DATASETS.TESTS
    assert recipe.py.model.num_ids == identities(yml)


def test_captions_are_read_in_the_same_way(recipe):
    is_text = recipe.yml.MODEL.META_ARCHITECTURE == "TAGCLIP"
    length = {"length": recipe.yml.MODEL.CLIP.TEXT_LENGTH}
    for split, expected in (
        ("train", {"which": recipe.yml.INPUT.CAPTIONS, **length}),
        ("val", length),
        ("test", length),
    ):
        assert recipe.py[f"{split}_dataloader"].dataset.get("captions") == (expected if is_text else None)
    if is_text:
        assert recipe.py.model.clip.text_length == length["length"]
        ramps = [hook.epochs for hook in recipe.py.custom_hooks if hook.type == "agreid_plugin.SoftLabelRamp"]
        assert ramps == [recipe.yml.MODEL.TAG_CLIP.SOFT_LABEL_EPOCHS]


def test_attributes_are_given_where_they_are_learned(recipe):
    """The model's own are compared with its other arguments."""
    learns = recipe.yml.MODEL.META_ARCHITECTURE == "SVPR" and recipe.yml.MODEL.SVPR.ASMOE
    given = recipe.py.train_dataloader.dataset.get("attributes")
    assert (given is not None) == (recipe.py.model.get("attributes") is not None) == learns
    if given:
        assert (
            given
            == recipe.py.model.attributes
            == [[name, list(values)] for name, values in recipe.cfg.MODEL.SVPR.ATTRIBUTES]
        )


def test_batches_and_loaders_are_the_same(recipe):
    yml, train = recipe.yml, recipe.py.train_dataloader
    assert train.batch_size == yml.SOLVER.IMS_PER_BATCH
    assert train.drop_last
    assert train.sampler.type == SAMPLERS[yml.DATALOADER.SAMPLER_TRAIN]
    if train.sampler.type == "DefaultSampler":
        assert train.sampler.shuffle
    else:
        assert (train.sampler.batch_size, train.sampler.per_identity) == (train.batch_size, yml.DATALOADER.NUM_INSTANCE)
    assert train.worker_init_fn.type == "agreid_plugin.seed_worker"
    for test in (recipe.py.val_dataloader, recipe.py.test_dataloader):
        assert (test.batch_size, test.num_workers) == (yml.TEST.IMS_PER_BATCH, yml.DATALOADER.NUM_WORKERS)
        assert test.sampler == {"type": "DefaultSampler", "shuffle": False}
    assert train.num_workers == yml.DATALOADER.NUM_WORKERS


def test_runs_are_as_long_and_evaluate_and_save_as_often(recipe):
    yml, py = recipe.yml, recipe.py
    assert py.train_cfg.max_epochs == yml.SOLVER.MAX_EPOCH
    assert py.train_cfg.val_interval == (yml.TEST.EVAL_PERIOD or yml.SOLVER.MAX_EPOCH)
    assert py.default_hooks.checkpoint.interval == (yml.SOLVER.CHECKPOINT_PERIOD or -1)
    assert py.default_hooks.logger.interval == yml.SOLVER.LOG_PERIOD
    assert py.randomness.seed == yml.SEED
    assert py.env_cfg.cudnn_benchmark == yml.CUDNN_BENCHMARK
    assert py.work_dir == f"{yml.OUTPUT_DIR}-mmengine"
    assert not yml.TEST.BEST_METRIC
    for evaluator in (py.val_evaluator, py.test_evaluator):
        assert evaluator == {"type": "agreid_plugin.MultiProtocolMetric", "metric": yml.TEST.METRIC}
    assert not any((yml.TEST.RERANK.ENABLED, yml.TEST.AQE.ENABLED, yml.TEST.FLIP.ENABLED, yml.TEST.ROC.ENABLED))


def test_every_recipe_has_a_partner():
    assert {name.partition("/")[0] for name in RECIPES} >= {"VDT", "ViSA", "VIF-AGReID", "SVPR-ReID", "TAG-CLIP"}
    assert [name for name in RECIPES if not (PROJECTS / f"{name}.yml").is_file()] == []
    others = [path for path in PROJECTS.glob("*/*.py") if name_of(path) not in (*RECIPES, PLUGIN)]
    bases = [path for path in others if any(f"./{path.name}" in each.read_text() for each in path.parent.glob("*.py"))]
    assert others == bases


@pytest.mark.parametrize(
    "path",
    [*sorted(ROOT.glob("configs/mmengine/**/*.py")), *(PROJECTS / f"{name}.py" for name in RECIPES)],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_a_recipe_loads_and_survives_being_written_down(path, tmp_path):
    config = Config.fromfile(path)
    (tmp_path / "written.py").write_text(config.pretty_text)
    assert Config.fromfile(tmp_path / "written.py").to_dict() == config.to_dict()


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_the_hooks_that_every_run_has(name):
    config = Config.fromfile(PROJECTS / f"{name}.py")
    kinds = [hook.type.removeprefix("agreid_plugin.") for hook in config.custom_hooks]
    assert {"IdentityCheck", "LearningGuard", "RunCard", "SyncBuffers", "Results", "ExactResume"} <= set(kinds)
    assert config.default_scope == "agreid_plugin"
    assert config.custom_imports.imports == ["agreid_plugin"]
    assert [each.type for each in config.visualizer.vis_backends] == ["LocalVisBackend", "TensorboardVisBackend"]
