"""What would make the host hang, divide by zero or fail late, found before a run and said in one line."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence

import torch
from fastreid.data.datasets import DATASET_REGISTRY
from fastreid.evaluation import inference_context
from fastreid.modeling.backbones import BACKBONE_REGISTRY, build_backbone
from fastreid.modeling.heads import REID_HEADS_REGISTRY
from fastreid.modeling.meta_arch import META_ARCH_REGISTRY

from agreid_plugin.data.bad_images import POLICIES
from agreid_plugin.errors import InputError, first_line, unknown
from agreid_plugin.evaluation import NUMBERS, Metrics
from agreid_plugin.evaluation.test_sets import TestSet
from agreid_plugin.hosts.fastreid import data
from agreid_plugin.hosts.fastreid.config import changed, load_config
from agreid_plugin.hosts.fastreid.data import platform_of, view_of
from agreid_plugin.hosts.fastreid.distributed import plain
from agreid_plugin.hosts.fastreid.losses import check_losses
from agreid_plugin.hosts.fastreid.methods import HostMethod
from agreid_plugin.hosts.fastreid.solver import check_solver
from agreid_plugin.hosts.fastreid.text_data import check_text, training_captions
from agreid_plugin.hosts.fastreid.transforms import check_pipeline
from agreid_plugin.types import UNKNOWN, platform_label

SCHEDULES = ("MultiStepLR", "CosineAnnealingLR")
METRICS = ("cosine", "euclidean")
VIT_DEPTHS = ("small", "base")


def check_config(cfg) -> None:
    """Check what can be told from the configuration alone."""
    _check_names(cfg)
    check_losses(cfg)
    check_pipeline(cfg.INPUT.PIPELINE)
    check_text(cfg)
    check_solver(cfg)
    _check_numbers(cfg)
    _check_model(cfg)


def _check_names(cfg) -> None:
    for key, names, known in (
        ("MODEL.META_ARCHITECTURE", [cfg.MODEL.META_ARCHITECTURE], META_ARCH_REGISTRY._obj_map),
        ("MODEL.BACKBONE.NAME", [cfg.MODEL.BACKBONE.NAME], BACKBONE_REGISTRY._obj_map),
        ("MODEL.HEADS.NAME", [cfg.MODEL.HEADS.NAME], REID_HEADS_REGISTRY._obj_map),
        ("DATASETS.NAMES", cfg.DATASETS.NAMES, DATASET_REGISTRY._obj_map),
        ("DATASETS.TESTS", cfg.DATASETS.TESTS, DATASET_REGISTRY._obj_map),
        ("DATASETS.BAD_IMAGES", [cfg.DATASETS.BAD_IMAGES], POLICIES),
        ("DATALOADER.SAMPLER_TRAIN", [cfg.DATALOADER.SAMPLER_TRAIN], data.SAMPLERS),
        ("SOLVER.OPT", [cfg.SOLVER.OPT], _optimizers()),
        ("SOLVER.SCHED", [cfg.SOLVER.SCHED], SCHEDULES),
        ("TEST.METRIC", [cfg.TEST.METRIC], METRICS),
    ):
        if isinstance(names, str):
            raise InputError(f'{key} takes a list, for example ("{names}",), got {names!r}')
        for name in names:
            if name not in known:
                raise unknown(key, name, known)
    for key, names in (("DATASETS.NAMES", cfg.DATASETS.NAMES), ("DATASETS.TESTS", cfg.DATASETS.TESTS)):
        if not names:
            raise InputError(f"{key} is empty: name at least one dataset")
        repeated = {name for name in names if names.count(name) > 1}
        if repeated:
            raise InputError(f"{key} names {', '.join(sorted(repeated))} twice")


def _optimizers() -> list[str]:
    return [name for name, value in vars(torch.optim).items() if isinstance(value, type) and name != "Optimizer"]


def _check_numbers(cfg) -> None:
    positive = {
        "SOLVER.MAX_EPOCH": cfg.SOLVER.MAX_EPOCH,
        "SOLVER.IMS_PER_BATCH": cfg.SOLVER.IMS_PER_BATCH,
        "SOLVER.LOG_PERIOD": cfg.SOLVER.LOG_PERIOD,
        "TEST.IMS_PER_BATCH": cfg.TEST.IMS_PER_BATCH,
        "DATALOADER.NUM_INSTANCE": cfg.DATALOADER.NUM_INSTANCE,
    }
    for key, value in positive.items():
        if value < 1:
            raise InputError(f"{key} is {value}, but must be 1 or more")
    for key, value, zero in (
        ("TEST.EVAL_PERIOD", cfg.TEST.EVAL_PERIOD, "the end of training only"),
        ("SOLVER.CHECKPOINT_PERIOD", cfg.SOLVER.CHECKPOINT_PERIOD, "the end of training only"),
        ("SOLVER.CHECKPOINT_ITERS", cfg.SOLVER.CHECKPOINT_ITERS, "none within an epoch"),
        ("SOLVER.KEEP_CHECKPOINTS", cfg.SOLVER.KEEP_CHECKPOINTS, "all of them"),
        ("SOLVER.WARMUP_EPOCHS", cfg.SOLVER.WARMUP_EPOCHS, "SOLVER.WARMUP_ITERS"),
    ):
        if value < 0:
            raise InputError(f"{key} is {value}; use 0 for {zero}")


def _check_model(cfg) -> None:
    backbone = cfg.MODEL.BACKBONE
    if backbone.PRETRAIN and not backbone.PRETRAIN_PATH:
        raise InputError(
            "MODEL.BACKBONE.PRETRAIN is True but PRETRAIN_PATH is empty: nothing is downloaded, name the weight file"
        )
    if backbone.PRETRAIN and not os.path.isfile(backbone.PRETRAIN_PATH):
        raise InputError(f"MODEL.BACKBONE.PRETRAIN_PATH {backbone.PRETRAIN_PATH} does not exist")
    if backbone.NAME == "build_vit_backbone":
        if backbone.DEPTH not in VIT_DEPTHS:
            raise unknown("MODEL.BACKBONE.DEPTH of build_vit_backbone", backbone.DEPTH, VIT_DEPTHS)
        if list(cfg.INPUT.SIZE_TRAIN) != list(cfg.INPUT.SIZE_TEST):
            raise InputError(
                f"build_vit_backbone needs one image size: INPUT.SIZE_TRAIN is {list(cfg.INPUT.SIZE_TRAIN)}, "
                f"INPUT.SIZE_TEST {list(cfg.INPUT.SIZE_TEST)}"
            )
    if cfg.MODEL.META_ARCHITECTURE == "MoCo" and cfg.MODEL.QUEUE_SIZE % cfg.SOLVER.IMS_PER_BATCH:
        raise InputError(
            f"MoCo needs MODEL.QUEUE_SIZE ({cfg.MODEL.QUEUE_SIZE}) divisible by SOLVER.IMS_PER_BATCH "
            f"({cfg.SOLVER.IMS_PER_BATCH})"
        )
    if cfg.MODEL.META_ARCHITECTURE == "Distiller":
        _check_teachers(cfg)


def _check_teachers(cfg) -> None:
    configs, weights = cfg.KD.MODEL_CONFIG, cfg.KD.MODEL_WEIGHTS
    if not configs and not cfg.KD.EMA.ENABLED:
        raise InputError("Distiller has no teacher: set KD.MODEL_CONFIG and KD.MODEL_WEIGHTS, or KD.EMA.ENABLED True")
    if len(configs) != len(weights):
        raise InputError(f"KD.MODEL_CONFIG names {len(configs)} teachers, KD.MODEL_WEIGHTS {len(weights)}: one each")
    for config, path in zip(configs, weights, strict=True):
        if load_config(config).MODEL.DEVICE.startswith("cuda") and not torch.cuda.is_available():
            raise InputError(f"KD.MODEL_CONFIG {config}: MODEL.DEVICE is cuda, but there is no GPU: set it to cpu")
        if not os.path.isfile(path):
            raise InputError(f"KD.MODEL_WEIGHTS: weight file {path} does not exist")


def check_processes(cfg, world_size: int) -> None:
    """Check that several processes can fill their batches, before any is started; one alone finds out itself."""
    if world_size > 1:
        _check_divisible(cfg, world_size)
        items, _ = training_captions(cfg, *data.training_items(cfg))  # where a caption is an item of its own
        check_batches(cfg, len(items), len({item[1] for item in items}), world_size)


def check_batches(cfg, images: int, identities: int, world_size: int) -> None:
    """Check that every process can fill its batches from the training set."""
    batch, per_identity = cfg.SOLVER.IMS_PER_BATCH, cfg.DATALOADER.NUM_INSTANCE
    _check_divisible(cfg, world_size)
    if images < batch:
        raise InputError(f"the training set has {images} images, less than one batch: SOLVER.IMS_PER_BATCH is {batch}")
    if identities < 2:
        raise InputError(f"the training set has {identities} identity; training needs two or more")
    if "Identity" in cfg.DATALOADER.SAMPLER_TRAIN:
        _check_identities(cfg.DATALOADER.SAMPLER_TRAIN, identities, batch, world_size, per_identity)
    _check_schedule(cfg, images // batch)


def _check_divisible(cfg, world_size: int) -> None:
    if cfg.SOLVER.IMS_PER_BATCH % world_size:
        raise InputError(
            f"SOLVER.IMS_PER_BATCH {cfg.SOLVER.IMS_PER_BATCH} does not divide by the {world_size} processes"
        )


def _check_identities(sampler: str, identities: int, batch: int, world_size: int, per_identity: int) -> None:
    per_process = batch // world_size
    if per_process % per_identity:
        raise InputError(
            f"{sampler}: a process's batch of {per_process} (SOLVER.IMS_PER_BATCH {batch} over {world_size}) does not "
            f"divide by DATALOADER.NUM_INSTANCE {per_identity}"
        )
    needed = batch // per_identity
    if identities < needed:
        raise InputError(
            f"{sampler}: a batch of {batch} with {per_identity} images each takes {needed} identities, the training "
            f"set has {identities}; lower SOLVER.IMS_PER_BATCH or raise DATALOADER.NUM_INSTANCE"
        )


def warmup_iterations(cfg, iterations_per_epoch: int) -> int:
    """Return for how many iterations the learning rate warms up, whichever key says it."""
    return cfg.SOLVER.WARMUP_EPOCHS * iterations_per_epoch or cfg.SOLVER.WARMUP_ITERS


def _check_schedule(cfg, iterations_per_epoch: int) -> None:
    solver, warmup = cfg.SOLVER, warmup_iterations(cfg, iterations_per_epoch)
    waiting = max(math.ceil(warmup / iterations_per_epoch), solver.DELAY_EPOCHS)
    if solver.SCHED == "CosineAnnealingLR" and waiting >= solver.MAX_EPOCH:
        raise InputError(
            f"the cosine schedule has no epoch left: SOLVER.MAX_EPOCH is {solver.MAX_EPOCH}, but a warm-up of "
            f"{warmup} iterations at {iterations_per_epoch} an epoch (WARMUP_ITERS, WARMUP_EPOCHS) and DELAY_EPOCHS "
            f"{solver.DELAY_EPOCHS} take {waiting}"
        )


def check_training_views(model: torch.nn.Module, train_set) -> None:
    """Check that a method which learns from views, or from platforms, knows that of every training image."""
    method = plain(model)
    for field, label_of in (("views", view_of), ("platforms", platform_of)):
        if field not in getattr(method, "training_inputs", ()):
            continue
        unknown_ones = [str(item[0]) for item in train_set.img_items if label_of(item) == UNKNOWN]
        if unknown_ones:
            raise InputError(
                f"{type(method).__name__} learns from the {field[:-1]} of every image, but {len(unknown_ones)} of "
                f"{len(train_set)} training images have none, for example {unknown_ones[0]}; train on an aerial-ground "
                "set"
            )


def check_test_views(model: torch.nn.Module, test_set: TestSet) -> None:
    """Check that a method which is given the views of test images, or their platforms, can have them."""
    method = plain(model)
    for field, is_known in (
        ("views", lambda record: record.view is not None),
        ("platforms", lambda record: platform_label(record.platform) != UNKNOWN),
    ):
        if field not in getattr(method, "inference_inputs", ()):
            continue
        unknown_ones = [record.path for record in test_set.records if not is_known(record)]
        if unknown_ones:
            raise InputError(
                f"{type(method).__name__} needs the {field[:-1]} of every test image, but {len(unknown_ones)} of "
                f"{test_set.dataset.name} have none, for example {unknown_ones[0]}; set MODEL.VIEW predicted"
            )


def check_best_metric(cfg, sets: Iterable[TestSet]) -> None:
    """Check that `TEST.BEST_METRIC` names a number that an evaluation will give."""
    known = [f"{each}/{number}" for entry in sets for each in entry.protocols.values() for number in NUMBERS]
    if cfg.TEST.BEST_METRIC and cfg.TEST.BEST_METRIC not in known:
        raise unknown("TEST.BEST_METRIC", cfg.TEST.BEST_METRIC, known)


def best_metric(cfg, metrics: Sequence[Metrics], sets: Sequence[TestSet]) -> float | None:
    """Return the number that selects the best model, None if nothing may.

    Without a name it is the mean of mAP and Rank-1 under the protocol that the first test set selects by.
    """
    if cfg.TEST.BEST_METRIC:
        protocol, _, number = cfg.TEST.BEST_METRIC.rpartition("/")
        return next(entry[number] for entry in metrics if entry.protocol == protocol)
    selecting = next((entry for entry in metrics if entry.protocol == str(sets[0].selects_by)), None)
    return None if selecting is None else (selecting["mAP"] + selecting["Rank-1"]) / 2


def with_feature_width(cfg):
    """Return the configuration with the width of the backbone's features where `MODEL.BACKBONE.FEAT_DIM` is 0.

    The backbone is built once more to be asked, from random weights that leave the run's own random numbers alone. Our
    meta-architectures take the width from theirs, and need no number.
    """
    if cfg.MODEL.BACKBONE.FEAT_DIM or issubclass(META_ARCH_REGISTRY.get(cfg.MODEL.META_ARCHITECTURE), HostMethod):
        return cfg
    asked = changed(cfg, "MODEL.BACKBONE.PRETRAIN", False)
    try:
        with torch.random.fork_rng(devices=()):
            width = _feature_width(asked, build_backbone(asked), torch.device("cpu"))
    except RuntimeError as error:
        raise InputError(
            f"MODEL.BACKBONE.FEAT_DIM is 0, but {cfg.MODEL.BACKBONE.NAME} cannot be asked for its width, give it: "
            f"{first_line(error)}"
        ) from error
    return changed(cfg, "MODEL.BACKBONE.FEAT_DIM", width)


def check_feature_width(cfg, model: torch.nn.Module) -> None:
    """Check `MODEL.BACKBONE.FEAT_DIM`, which the host takes on trust, against what the backbone gives."""
    if cfg.MODEL.META_ARCHITECTURE != "Baseline":
        return
    width = _feature_width(cfg, model.backbone, model.device)
    if width != cfg.MODEL.BACKBONE.FEAT_DIM:
        raise InputError(
            f"MODEL.BACKBONE.FEAT_DIM is {cfg.MODEL.BACKBONE.FEAT_DIM}, but {cfg.MODEL.BACKBONE.NAME} "
            f"{cfg.MODEL.BACKBONE.DEPTH} gives {width}: set it to {width}"
        )


def _feature_width(cfg, backbone: torch.nn.Module, device: torch.device) -> int:
    with inference_context(backbone), torch.no_grad():
        return backbone(torch.zeros(1, 3, *cfg.INPUT.SIZE_TEST, device=device)).shape[1]
