"""Recipes of both hosts say the same: models, settings of parameters, learning rates, images, and the run."""

import copy
import inspect
import random
from collections.abc import Mapping
from functools import wraps
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fastreid.modeling.meta_arch import META_ARCH_REGISTRY
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, PARAM_SCHEDULERS, init_default_scope
from PIL import Image
from torch import nn
from torch.optim import SGD

from agreid_plugin.data.attributes import AttributeSchema
from agreid_plugin.data.datasets import dataset_name
from agreid_plugin.data.synth import make_agsynth
from agreid_plugin.hosts.fastreid import checks, hooks, solver
from agreid_plugin.hosts.fastreid.attributes import with_attributes
from agreid_plugin.hosts.fastreid.config import changed, load_config
from agreid_plugin.hosts.fastreid.losses import build_objectives
from agreid_plugin.hosts.fastreid.methods import HostMethod
from agreid_plugin.hosts.fastreid.trainer import Trainer
from agreid_plugin.hosts.fastreid.transforms import build_transforms

ROOT = Path(__file__).parents[2]
SAMPLERS = {
    "NaiveIdentitySampler": "agreid_plugin.IdentitySampler",
    "ViewBalancedIdentitySampler": "agreid_plugin.ViewBalancedIdentitySampler",
    "TrainingSampler": "DefaultSampler",
}
IDENTITIES = {"CARGO": 2500, "CP2108": 1442, "TAG_PEDES": 4840}  # as published
IDENTITIES_OF_AGSYNTH = 100  # half of the people
OURS = ("agreid_plugin.losses", "agreid_plugin.methods", "agreid_plugin.nn")
PROJECTS = ROOT / "projects"
PLUGIN = "Example/example_plugin"  # of fast-reid
EPOCH = 27  # iterations, in the place of hundreds; 120 epochs are still longer than 2000 iterations of warm-up


def _name(path: Path) -> str:
    return str(path.relative_to(PROJECTS).with_suffix(""))


# A base of several recipes names no folder for a run.
RECIPES = sorted(_name(path) for path in PROJECTS.glob("*/*.py") if "work_dir" in path.read_text())


@pytest.fixture(scope="module")
def cp2108(tmp_path_factory) -> str:
    """A folder holding AG-Synth as CP2108, for its attributes."""
    root = tmp_path_factory.mktemp("cp2108")
    make_agsynth(root, layout="cp2108", ids=8, images_per_id=8, size=(32, 16), workers=1, progress=False)
    return str(root)


@pytest.fixture(scope="module", params=RECIPES)
def recipe(request, cp2108) -> SimpleNamespace:
    """Both forms of a recipe, `yml` and `py`; `cfg` and `config` are the same without pretrained weights."""
    path = ROOT / "projects" / request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTREID_DATASETS", cp2108)
        yml, py = load_config(path.with_suffix(".yml")), Config.fromfile(path.with_suffix(".py"))
    init_default_scope("agreid_plugin")
    return SimpleNamespace(yml=yml, py=py, cfg=_buildable(yml, cp2108), config=_without_weights(py))


@pytest.fixture(scope="module")
def built(recipe) -> SimpleNamespace:
    """Both models, without memory for their weights, and what they are made of."""
    with pytest.MonkeyPatch.context() as patch, torch.device("meta"):
        recorder = Recorder(patch)
        theirs = META_ARCH_REGISTRY.get(recipe.cfg.MODEL.META_ARCHITECTURE)(recipe.cfg)
        if not isinstance(theirs, HostMethod):  # the host's own has losses of its own, of which only VIAL is ours
            recorder.calls = [call for call in recorder.calls if call[0] not in ("VIAL", "OnFeatures", "OnLogits")]
            build_objectives(recipe.cfg)
        their_parts = recorder.taken()
        ours = MODELS.build(recipe.config.model)
        return SimpleNamespace(theirs=theirs, ours=ours, their_parts=their_parts, our_parts=recorder.taken())


def _buildable(yml, root):
    """Return a configuration of fast-reid's with the number of identities, the attributes, and no weights."""
    cfg = changed(changed(yml, "MODEL.BACKBONE.PRETRAIN", False), "MODEL.HEADS.NUM_CLASSES", identities(yml))
    if cfg.MODEL.BACKBONE.PRETRAIN_PATH.endswith(".pt"):  # CLIP's, which would tell the activation
        cfg = changed(cfg, "MODEL.CLIP.QUICK_GELU", "yes")
    return with_attributes(changed(cfg, "DATASETS.ROOT", root) if "CP2108" in cfg.DATASETS.NAMES else cfg)


def identities(yml):
    return IDENTITIES_OF_AGSYNTH if yml.DATASETS.AGSYNTH.IDS else IDENTITIES[yml.DATASETS.NAMES[0]]


def _without_weights(py):
    config = copy.deepcopy(py)
    if vit := config.model.get("backbone", {}).get("vit"):
        vit.pop("pretrained", None)
    elif config.model.clip.pop("pretrained", None):
        config.model.clip.quick_gelu = "yes"
    return config


class Recorder:
    """Keeps with what arguments our networks, methods and losses are made."""

    def __init__(self, monkeypatch):
        self.calls = []
        for kind in _kinds(nn.Module):
            if "__init__" in vars(kind) and kind.__module__.startswith(OURS):
                self._watch(kind, monkeypatch)

    def _watch(self, kind, monkeypatch):
        make, signature = kind.__init__, inspect.signature(kind.__init__)

        @wraps(make)  # modules that are imported meanwhile ask for its arguments
        def __init__(module, *args, **kwargs):
            bound = signature.bind(module, *args, **kwargs)
            bound.apply_defaults()
            values = {name: _plain(value) for name, value in bound.arguments.items() if name != "self"}
            self.calls.append((kind.__name__, values))
            make(module, *args, **kwargs)

        monkeypatch.setattr(kind, "__init__", __init__)

    def taken(self):
        """Return the calls so far, in no order: hosts make heads and losses before or after backbones."""
        calls, self.calls = self.calls, []
        return sorted(map(repr, calls))


def _kinds(kind):
    for child in kind.__subclasses__():
        yield child
        yield from _kinds(child)


def _plain(value):
    """Return an argument so that it can be compared: modules by kind, functions and tensors as such."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in sorted(value.items())}
    if isinstance(value, nn.ModuleDict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, AttributeSchema):
        return _plain(value.groups)
    if isinstance(value, nn.Module):
        return next(
            each.__name__ for each in type(value).__mro__ if not each.__module__.startswith("agreid_plugin.hosts")
        )
    if callable(value) or isinstance(value, torch.Tensor):
        return type(value).__name__ if isinstance(value, torch.Tensor) else "function"
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def parameters(model):
    """Return shape and whether it is trained of every parameter, by the name that fast-reid's model has."""
    return {
        name.removeprefix("method."): (tuple(value.shape), value.requires_grad)
        for name, value in model.named_parameters()
    }


def test_models_are_made_of_the_same_parts_with_the_same_arguments(built):
    assert built.our_parts == built.their_parts
    assert len(built.our_parts) > 10
    assert parameters(built.ours) == parameters(built.theirs)


def test_pixels_are_normalized_in_the_same_way(recipe):
    preprocessor = recipe.py.model.data_preprocessor
    assert preprocessor.mean == recipe.yml.MODEL.PIXEL_MEAN
    assert preprocessor.std == recipe.yml.MODEL.PIXEL_STD


def test_weights_are_those_of_the_same_file(recipe):
    yml, model = recipe.yml.MODEL, recipe.py.model
    weights = (model.clip if "clip" in model else model.backbone.vit).get("pretrained")
    assert weights == (yml.BACKBONE.PRETRAIN_PATH if yml.BACKBONE.PRETRAIN else None)
    if "clip" in model:
        assert model.clip.get("quick_gelu", "auto") == yml.CLIP.QUICK_GELU


def settings(optimizer, model):
    """Return what the optimizer does with each parameter, by the name that fast-reid's model has."""
    names = {id(value): name.removeprefix("method.") for name, value in model.named_parameters()}
    return {
        names[id(value)]: {name: _rounded(group[name]) for name in _SETTINGS if name in group}
        for group in optimizer.param_groups
        for value in group["params"]
    }


_SETTINGS = ("lr", "weight_decay", "momentum", "nesterov", "dampening", "betas", "eps", "amsgrad")


def _rounded(value):
    values = value if isinstance(value, tuple | list) else (value,)
    return tuple(float(f"{each:.12g}") for each in values)


def test_each_parameter_is_optimized_in_the_same_way(recipe, built):
    theirs, ours = built.theirs, built.ours
    optimizer, _ = Trainer.build_optimizer(recipe.cfg, theirs)
    is_mixed = recipe.yml.SOLVER.AMP.ENABLED
    assert recipe.py.optim_wrapper.type == ("agreid_plugin.AmpOptimWrapper" if is_mixed else "OptimWrapper")
    wrapper = build_optim_wrapper(ours, recipe.py.optim_wrapper | {"type": "OptimWrapper"})  # weights are on no device
    assert type(wrapper.optimizer).__name__ == recipe.yml.SOLVER.OPT
    found = settings(wrapper.optimizer, ours)
    assert found == settings(optimizer, theirs)
    assert set(found) == {name for name, (_, is_trained) in parameters(ours).items() if is_trained}


def test_gradients_are_clipped_in_the_same_way(recipe):
    clip, wrapper = recipe.yml.SOLVER.CLIP_GRADIENTS, recipe.py.optim_wrapper
    expected = {"type": "each", "max_norm": clip.CLIP_VALUE} if clip.ENABLED else None
    assert wrapper.get("clip_grad") == expected
    assert (clip.CLIP_TYPE, clip.NORM_TYPE) == ("norm", 2.0)


def their_rates(cfg, bases):
    """Return fast-reid's rates of groups at every iteration, by its own hook."""
    optimizer = one_parameter_each(bases)
    schedulers = Trainer.build_lr_scheduler(cfg, optimizer, EPOCH)
    kind = solver.IterationScheduler if cfg.SOLVER.SCHED_STEP == "iteration" else hooks.hooks.LRScheduler
    hook = kind(optimizer, schedulers)
    hook.trainer = trainer = SimpleNamespace(
        warmup_iters=checks.warmup_iterations(cfg, EPOCH),
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
    others = [path for path in PROJECTS.glob("*/*.py") if _name(path) not in (*RECIPES, PLUGIN)]
    bases = [path for path in others if any(f"./{path.name}" in each.read_text() for each in path.parent.glob("*.py"))]
    assert others == bases


def _files(pattern):
    return sorted(ROOT.glob(pattern))


@pytest.mark.parametrize(
    "path",
    [*_files("configs/mmengine/**/*.py"), *(ROOT / f"projects/{name}.py" for name in RECIPES)],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_a_recipe_loads_and_survives_being_written_down(path, tmp_path):
    config = Config.fromfile(path)
    (tmp_path / "written.py").write_text(config.pretty_text)
    assert Config.fromfile(tmp_path / "written.py").to_dict() == config.to_dict()


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_the_hooks_that_every_run_has(name):
    config = Config.fromfile(ROOT / f"projects/{name}.py")
    kinds = [hook.type.removeprefix("agreid_plugin.") for hook in config.custom_hooks]
    assert {"IdentityCheck", "LearningGuard", "RunCard", "SyncBuffers", "Results", "ExactResume"} <= set(kinds)
    assert config.default_scope == "agreid_plugin"
    assert config.custom_imports.imports == ["agreid_plugin"]
    assert [each.type for each in config.visualizer.vis_backends] == ["LocalVisBackend", "TensorboardVisBackend"]
