"""Checks of a configuration before a run: names, numbers, batches, the best metric."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import torch
from fastreid.data.datasets import DATASET_REGISTRY
from fastreid.layers import pooling
from fastreid.modeling.backbones import BACKBONE_REGISTRY
from fastreid.modeling.heads import REID_HEADS_REGISTRY
from fastreid.modeling.meta_arch import META_ARCH_REGISTRY

from agreid_plugin.data.bad_images import POLICIES
from agreid_plugin.errors import InputError, MissingInputError, unknown
from agreid_plugin.evaluation import NUMBERS, Metrics
from agreid_plugin.evaluation.distances import METRICS
from agreid_plugin.evaluation.evaluation_sets import EvaluationSet
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.fastreid.data import loaders
from agreid_plugin.hosts.fastreid.data.text import check_text, select_items
from agreid_plugin.hosts.fastreid.data.transforms import check_pipeline
from agreid_plugin.hosts.fastreid.engine.solver import check_solver
from agreid_plugin.hosts.fastreid.models.base import get_method_class, takes_any_backbone
from agreid_plugin.hosts.fastreid.models.losses import check_losses

SCHEDULES = ("MultiStepLR", "CosineAnnealingLR")
DEPTHS = {
    "build_resnet_backbone": ("18x", "34x", "50x", "101x"),
    "build_resnext_backbone": ("50x", "101x"),
    "build_resnest_backbone": ("50x", "101x", "200x", "269x"),
    "build_osnet_backbone": ("x1_0", "x0_75", "x0_5", "x0_25"),
    "build_shufflenetv2_backbone": ("0.5x", "1.0x", "1.5x", "2.0x"),
    "build_mobilenetv2_backbone": ("1.0x", "0.75x", "0.5x", "0.35x", "0.25x", "0.1x"),
    "build_mobilenetv3_backbone": ("Large", "Small"),
    "build_repvgg_backbone": (
        *("A0", "A1", "A2", "B0", "B1", "B1g2", "B1g4", "B2", "B2g2", "B2g4", "B3", "B3g2", "B3g4"),
    ),
    "build_regnet_backbone": tuple(
        f"{size}{kind}" for size in (200, 400, 800, 1600, 3200, 4000, 6400) for kind in "xy"
    ),
    "build_effnet_backbone": ("b0", "b1", "b2", "b3", "b4", "b5"),
    "build_vit_backbone": ("small", "base"),
}
"""What the host's networks take for `MODEL.BACKBONE.DEPTH`."""
PART_KEYS = ("MODEL.META_ARCHITECTURE", "MODEL.BACKBONE.NAME", "MODEL.HEADS.NAME")
REGISTER_HINT = "; CUSTOM_IMPORTS names the file that registers one of your own"
ONE_SIZE = ("build_vit_backbone", "Flatten")
BOTTLENECK_DEPTHS = ("50x", "101x")
"""Depths of a ResNet that MGN can take apart."""


def check_config(cfg) -> None:
    """Check what follows from the configuration only, without data or model."""
    check_model(cfg)
    _check_names(
        (
            ("DATASETS.NAMES", cfg.DATASETS.NAMES, DATASET_REGISTRY._obj_map),
            ("DATASETS.TESTS", cfg.DATASETS.TESTS, DATASET_REGISTRY._obj_map),
            ("DATASETS.BAD_IMAGES", [cfg.DATASETS.BAD_IMAGES], POLICIES),
            ("DATALOADER.SAMPLER_TRAIN", [cfg.DATALOADER.SAMPLER_TRAIN], loaders.SAMPLERS),
            ("SOLVER.OPT", [cfg.SOLVER.OPT], _optimizers()),
            ("SOLVER.SCHED", [cfg.SOLVER.SCHED], SCHEDULES),
            ("TEST.METRIC", [cfg.TEST.METRIC], METRICS),
        )
    )
    _check_datasets(cfg)
    check_pipeline(cfg.INPUT.PIPELINE)
    check_solver(cfg)
    _check_numbers(cfg)


def check_model(cfg) -> None:
    """Check what a model is built from; no schedule and no dataset is looked at."""
    _check_names(
        (
            ("MODEL.META_ARCHITECTURE", [cfg.MODEL.META_ARCHITECTURE], META_ARCH_REGISTRY._obj_map),
            ("MODEL.BACKBONE.NAME", [cfg.MODEL.BACKBONE.NAME], BACKBONE_REGISTRY._obj_map),
            ("MODEL.HEADS.NAME", [cfg.MODEL.HEADS.NAME], REID_HEADS_REGISTRY._obj_map),
            ("MODEL.HEADS.POOL_LAYER", [cfg.MODEL.HEADS.POOL_LAYER], pooling.__all__),
        )
    )
    check_losses(cfg)
    check_text(cfg)
    _check_pretrained(cfg.MODEL.BACKBONE)
    _check_host_models(cfg)


def _check_names(rows: Iterable[tuple[str, Sequence[str], Iterable[str]]]) -> None:
    """Check values of keys, (key, values, known values) each."""
    for key, names, known in rows:
        if isinstance(names, str):
            raise InputError(f'{key} takes a list, for example ("{names}",), got {names!r}')
        for name in names:
            if name not in known:
                raise InputError(f"{unknown(key, name, known)}{REGISTER_HINT if key in PART_KEYS else ''}")


def _check_datasets(cfg) -> None:
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
    if cfg.MODEL.META_ARCHITECTURE == "MoCo" and cfg.MODEL.QUEUE_SIZE % cfg.SOLVER.IMS_PER_BATCH:
        raise InputError(
            f"MoCo needs MODEL.QUEUE_SIZE ({cfg.MODEL.QUEUE_SIZE}) divisible by SOLVER.IMS_PER_BATCH "
            f"({cfg.SOLVER.IMS_PER_BATCH})"
        )


def _check_pretrained(backbone) -> None:
    if backbone.PRETRAIN and not backbone.PRETRAIN_PATH:
        raise InputError(
            "MODEL.BACKBONE.PRETRAIN is True but PRETRAIN_PATH is empty: nothing is downloaded, name the weight file"
        )
    if backbone.PRETRAIN and not os.path.isfile(backbone.PRETRAIN_PATH):
        raise MissingInputError(f"MODEL.BACKBONE.PRETRAIN_PATH {backbone.PRETRAIN_PATH} does not exist")


def _check_host_models(cfg) -> None:
    """Check what the host's own models need and do not check."""
    backbone = cfg.MODEL.BACKBONE
    depths = DEPTHS.get(backbone.NAME)
    of_others = takes_any_backbone(cfg) or get_method_class(cfg).suitable  # the rest say which one they need
    if depths and backbone.DEPTH not in depths and of_others:
        raise unknown(f"MODEL.BACKBONE.DEPTH of {backbone.NAME}", backbone.DEPTH, depths)
    in_one_size = "build_vit_backbone" if backbone.NAME == "build_vit_backbone" else cfg.MODEL.HEADS.POOL_LAYER
    if in_one_size in ONE_SIZE and list(cfg.INPUT.SIZE_TRAIN) != list(cfg.INPUT.SIZE_TEST):
        raise InputError(
            f"{in_one_size} needs one image size: INPUT.SIZE_TRAIN is {list(cfg.INPUT.SIZE_TRAIN)}, "
            f"INPUT.SIZE_TEST {list(cfg.INPUT.SIZE_TEST)}"
        )
    if cfg.MODEL.META_ARCHITECTURE == "MGN" and not _suits_mgn(backbone):
        raise InputError(
            f"MODEL.META_ARCHITECTURE MGN takes a ResNet apart, {backbone.NAME} {backbone.DEPTH} has not its layers: "
            f"use build_resnet_backbone with MODEL.BACKBONE.DEPTH {' or '.join(BOTTLENECK_DEPTHS)}"
        )
    if cfg.MODEL.META_ARCHITECTURE == "MGN":
        _check_mgn_sizes(cfg)
    if cfg.MODEL.META_ARCHITECTURE == "Distiller":
        _check_teachers(cfg)


def _check_mgn_sizes(cfg) -> None:
    """Refuse image heights of whose maps torch cannot cut three parts, as MGN does."""
    for key, size in (("INPUT.SIZE_TRAIN", cfg.INPUT.SIZE_TRAIN), ("INPUT.SIZE_TEST", cfg.INPUT.SIZE_TEST)):
        if -(-size[0] // 16) in (1, 2, 4):
            raise InputError(
                f"{key} is {list(size)}, of which MGN's maps have too few rows: take a height of 96 or more"
            )


def _suits_mgn(backbone) -> bool:
    """Return whether a backbone has the layers that MGN takes; one of a user's own may have them."""
    of_user = not BACKBONE_REGISTRY.get(backbone.NAME).__module__.startswith(("fastreid.", "agreid_plugin."))
    return of_user or (backbone.NAME == "build_resnet_backbone" and backbone.DEPTH in BOTTLENECK_DEPTHS)


def _check_teachers(cfg) -> None:
    configs, weights = cfg.KD.MODEL_CONFIG, cfg.KD.MODEL_WEIGHTS
    if not configs and not cfg.KD.EMA.ENABLED:
        raise InputError("Distiller has no teacher: set KD.MODEL_CONFIG and KD.MODEL_WEIGHTS, or KD.EMA.ENABLED True")
    if len(configs) != len(weights):
        raise InputError(f"KD.MODEL_CONFIG names {len(configs)} teachers, KD.MODEL_WEIGHTS {len(weights)}: one each")
    for config, path in zip(configs, weights, strict=True):
        load_config(config)
        if not os.path.isfile(path):
            raise MissingInputError(f"KD.MODEL_WEIGHTS: weight file {path} does not exist")


def check_processes(cfg, world_size: int) -> None:
    """Check that all processes can fill their batches, before any is started and anything is written."""
    _check_divisible(cfg, world_size)
    items = select_items(cfg, loaders.read_training_items(cfg)[0])
    check_batches(cfg, len(items), len({item[1] for item in items}), world_size)


def check_batches(cfg, images: int, identities: int, world_size: int) -> None:
    """Check that every process can fill its batches from the training set."""
    batch, per_identity = cfg.SOLVER.IMS_PER_BATCH, cfg.DATALOADER.NUM_INSTANCE
    _check_divisible(cfg, world_size)
    if images < batch:
        raise InputError(
            f"the training set has {images} images, less than one batch: SOLVER.IMS_PER_BATCH is {batch}; lower it"
        )
    if identities < 2:
        raise InputError(f"the training set has {identities} identity; training needs two or more; see DATASETS.NAMES")
    classes = cfg.MODEL.HEADS.NUM_CLASSES
    if 0 < classes < identities:
        raise InputError(
            f"MODEL.HEADS.NUM_CLASSES is {classes}, the training set has {identities} identities: leave it 0"
        )
    if "Identity" in cfg.DATALOADER.SAMPLER_TRAIN:
        _check_identities(cfg.DATALOADER.SAMPLER_TRAIN, identities, batch, world_size, per_identity)


def _check_divisible(cfg, world_size: int) -> None:
    if cfg.SOLVER.IMS_PER_BATCH % world_size:
        raise InputError(
            f"SOLVER.IMS_PER_BATCH {cfg.SOLVER.IMS_PER_BATCH} does not divide by the {world_size} processes; make it a "
            f"multiple of {world_size}"
        )


def _check_identities(sampler: str, identities: int, batch: int, world_size: int, per_identity: int) -> None:
    per_process = batch // world_size
    if per_process % per_identity:
        raise InputError(
            f"{sampler}: a process's batch of {per_process} (SOLVER.IMS_PER_BATCH {batch} over {world_size}) does not "
            f"divide by DATALOADER.NUM_INSTANCE {per_identity}; make the batch a multiple of "
            f"{world_size * per_identity}"
        )
    needed = batch // per_identity
    if identities < needed:
        raise InputError(
            f"{sampler}: a batch of {batch} with {per_identity} images each takes {needed} identities, the training "
            f"set has {identities}; lower SOLVER.IMS_PER_BATCH or raise DATALOADER.NUM_INSTANCE"
        )


def check_best_metric(cfg, sets: Iterable[EvaluationSet]) -> None:
    """Check that `TEST.BEST_METRIC` names a number that an evaluation will give."""
    known = [f"{each}/{number}" for entry in sets for each in entry.protocols.values() for number in NUMBERS]
    if cfg.TEST.BEST_METRIC and cfg.TEST.BEST_METRIC not in known:
        raise unknown("TEST.BEST_METRIC", cfg.TEST.BEST_METRIC, known)


def best_metric(cfg, metrics: Sequence[Metrics], sets: Sequence[EvaluationSet]) -> float | None:
    """Return the number that selects the best model, None if nothing may.

    Without a name it is the first test set's; see `EvaluationSet.selecting`.
    """
    if cfg.TEST.BEST_METRIC:
        protocol, _, number = cfg.TEST.BEST_METRIC.rpartition("/")
        return next((entry[number] for entry in metrics if entry.protocol == protocol), None)
    return sets[0].selection_score(metrics)
