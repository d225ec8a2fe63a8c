"""One training or evaluation run, from a configuration file to results, in one process or many."""

from __future__ import annotations

import logging
import os
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import torch
from fastreid.engine import default_setup, defaults, launch
from fastreid.evaluation import verify_results
from fastreid.modeling.meta_arch import META_ARCH_REGISTRY
from fastreid.utils import comm
from fastreid.utils.env import seed_all_rng
from fastreid.utils.logger import setup_logger
from tabulate import tabulate

from agreid_plugin.data.datasets import DATASETS
from agreid_plugin.data.protocols import Protocol
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import (
    NUMBERS,
    FeatureSet,
    Metrics,
    confidence,
    covered,
    load_features,
    save_features,
    save_results,
    table,
)
from agreid_plugin.evaluation.results import FILE_NAME as RESULTS
from agreid_plugin.hosts.fastreid import checks, console
from agreid_plugin.hosts.fastreid.agsynth import make_missing
from agreid_plugin.hosts.fastreid.clip import with_activation
from agreid_plugin.hosts.fastreid.config import load_config
from agreid_plugin.hosts.fastreid.data import source_of
from agreid_plugin.hosts.fastreid.evaluator import TestSet, choose, compute, thresholds
from agreid_plugin.hosts.fastreid.predictions import (
    accuracy,
    accuracy_table,
    check_predictions_file,
    predict,
    write_predictions,
)
from agreid_plugin.hosts.fastreid.svpr import with_attributes
from agreid_plugin.hosts.fastreid.trainer import Trainer
from agreid_plugin.hosts.fastreid.weights import load_weights

_logger = logging.getLogger("fastreid.run")


def train(args: Namespace) -> None:
    """Train as `fastreid train` was asked to."""
    cfg = _configured(args)
    checks.check_config(cfg)
    _claim_output(Path(cfg.OUTPUT_DIR), args.resume)
    make_missing(cfg)
    _launch(_train_process, with_activation(with_attributes(cfg)), args)


def evaluate(args: Namespace) -> None:
    """Evaluate as `fastreid eval` was asked to."""
    cfg = _configured(args)
    checks.check_config(cfg)
    _check_writable(Path(cfg.OUTPUT_DIR))
    if args.save_features:
        _check_features_file(cfg, Path(args.save_features))
    if args.save_attributes:
        _check_attributes_file(cfg, args)
    if args.features:
        _evaluate_features(cfg, args)
        return
    if not Path(cfg.MODEL.WEIGHTS).is_file():
        raise InputError(f"weight file {cfg.MODEL.WEIGHTS!r} does not exist; name it with --weights")
    make_missing(cfg)
    _launch(_evaluate_process, with_attributes(cfg), args)


def _configured(args: Namespace):
    cfg = load_config(args.config_file, args.overrides)
    if args.output:
        cfg.OUTPUT_DIR = args.output
    elif args.eval_only:
        cfg.OUTPUT_DIR = str(Path(cfg.OUTPUT_DIR) / "eval")  # the run's own files stay as they are
    if args.eval_only:
        cfg.MODEL.BACKBONE.PRETRAIN = False  # the checkpoint has it all
        cfg.MODEL.WEIGHTS = args.weights or cfg.MODEL.WEIGHTS
        cfg.TEST.PROTOCOLS = args.protocols or cfg.TEST.PROTOCOLS
        cfg.TEST.RERANK.ENABLED = args.rerank or cfg.TEST.RERANK.ENABLED
    if cfg.MODEL.DEVICE.startswith("cuda") and not torch.cuda.is_available():
        cfg.MODEL.DEVICE = "cpu"
    cfg.freeze()
    return cfg


def _claim_output(folder: Path, resume: bool) -> None:
    """Make sure the run can write its folder and overwrites no other run."""
    marker = folder / "last_checkpoint"
    if marker.exists() and not resume:
        raise InputError(f"{folder} holds a run already: continue it with --resume, or choose another --output")
    _check_writable(folder)


def _check_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".write-test-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"output folder {folder} cannot be written: {error.strerror or error}") from None


def _check_features_file(cfg, path: Path) -> None:
    datasets = {source_of(name) or name for name in cfg.DATASETS.TESTS}
    if len(datasets) > 1:
        raise InputError(f"--save-features keeps one dataset's features, DATASETS.TESTS names {', '.join(datasets)}")
    if path.exists():
        raise InputError(f"--save-features {path} exists already; choose another name")
    if not path.absolute().parent.is_dir():
        raise InputError(f"--save-features {path}: its folder does not exist")


def _check_attributes_file(cfg, args: Namespace) -> None:
    if args.features:
        raise InputError("--save-attributes asks the model, which --features does without: leave one of them out")
    check_predictions_file(args.save_attributes)
    if not hasattr(META_ARCH_REGISTRY.get(cfg.MODEL.META_ARCHITECTURE), "describe"):
        raise InputError(f"--save-attributes: {cfg.MODEL.META_ARCHITECTURE} knows nothing of attributes; SVPR does")


def _launch(main: Callable, cfg, args: Namespace) -> None:
    processes = _processes(args)
    url = args.dist_url or "auto"
    launch(main, processes, args.num_machines, args.machine_rank, url, args=(cfg, args))


def _processes(args: Namespace) -> int:
    gpus = torch.cuda.device_count()
    if args.num_gpus is not None and args.num_gpus > gpus:
        raise InputError(
            f"--num-gpus {args.num_gpus}, but this machine has {gpus}; use --num-processes N for CPU processes"
        )
    processes = args.num_processes or args.num_gpus or 1
    if gpus and processes > gpus:
        raise InputError(f"--num-processes {processes}, but this machine has {gpus} GPUs, one for each process")
    return processes


def _train_process(cfg, args: Namespace) -> None:
    cfg = _set_up(cfg, args)
    trainer = Trainer(cfg)
    trainer.resume_or_load(resume=args.resume)
    results = trainer.train()
    if results and comm.is_main_process():
        verify_results(cfg, _by_protocol(results))


def _evaluate_process(cfg, args: Namespace) -> None:
    cfg = _set_up(cfg, args)
    model = _load_model(cfg)
    evaluators = Trainer.run_test_sets(cfg, model)
    if args.save_attributes:
        _save_attributes(cfg, args, model, [evaluator.test_set for evaluator in evaluators.values()])
    if not comm.is_main_process():
        return
    if args.save_features:
        (evaluator,) = evaluators.values()
        save_features(args.save_features, evaluator.features)
        _logger.info("features of %d images in %s", len(evaluator.features.records), args.save_features)
    if args.calibrate:
        for evaluator in evaluators.values():
            _save_thresholds(cfg, evaluator.features, evaluator.test_set.protocols.values())
    _report(cfg, args, [entry for evaluator in evaluators.values() for entry in evaluator.metrics])
    verify_results(cfg, _by_protocol({name: evaluator.numbers for name, evaluator in evaluators.items()}))


def _save_attributes(cfg, args: Namespace, model: torch.nn.Module, sets: Iterable[TestSet]) -> None:
    """Write what the model takes every test image's attributes for, and tell how often it is right."""
    rows = [row for test_set in sets for row in predict(cfg, model, test_set)]
    if not comm.is_main_process():
        return
    write_predictions(args.save_attributes, rows)
    _logger.info("attributes of the test images in %s", args.save_attributes)
    known = accuracy(rows, [record for test_set in sets for record in test_set.records])
    if known:
        _logger.info("attributes that are right, in percent:\n%s", accuracy_table(known), extra=console.PRINTED)


def _load_model(cfg):
    cfg.defrost()
    cfg.MODEL.HEADS.NUM_CLASSES = cfg.MODEL.HEADS.NUM_CLASSES or 1  # the classifier is not used
    cfg.freeze()
    model = Trainer.build_model(cfg)
    _check_predictor(model, load_weights(model, cfg.MODEL.WEIGHTS), cfg.MODEL.WEIGHTS)
    return model


def _check_predictor(model: torch.nn.Module, left_out: Iterable[str], path: str) -> None:
    """Refuse to go by the views of a predictor that the file left untrained."""
    predicted = getattr(checks.plain(model), "view_source", "") == "predicted"
    if predicted and any(name.startswith("view_predictor.") for name in left_out):
        raise InputError(
            f"MODEL.VIEW is predicted, but {path} has no weights of a view predictor (released files never had one): "
            "train with this package, or set MODEL.VIEW given"
        )


def _evaluate_features(cfg, args: Namespace) -> None:
    """Evaluate features that were extracted before: no model, no images."""
    cfg = _set_up(cfg, args)
    features = load_features(args.features)
    protocols = _computable(features, cfg.TEST.PROTOCOLS)
    if args.calibrate:
        _save_thresholds(cfg, features, protocols)
    _report(cfg, args, compute(cfg, features, protocols))


def _computable(features: FeatureSet, names: Sequence[str]) -> list[Protocol]:
    """Return the protocols of these names, or all of whose images every one has a feature."""
    chosen = choose(features.dataset, names)
    if names or features.dataset.name not in DATASETS:
        return list(chosen.values())
    found = covered(features)
    left_out = set(chosen) - {protocol.name for protocol in found}
    if left_out:
        _logger.info("left out, features were not extracted for them: %s", ", ".join(sorted(left_out)))
    if not found:
        raise InputError(f"the features cover no protocol of {features.dataset.name}; extract them again")
    return found


def _report(cfg, args: Namespace, metrics: list[Metrics]) -> None:
    path = Path(cfg.OUTPUT_DIR) / RESULTS
    save_results(path, metrics)
    _logger.info("results in percent, kept in %s:\n%s", path, table(metrics), extra=console.PRINTED)
    if args.bootstrap:
        _logger.info("95 %% confidence over query identities, %d draws:\n%s", args.bootstrap, _intervals(args, metrics))


def _intervals(args: Namespace, metrics: list[Metrics]) -> str:
    rows = [[entry.protocol, *confidence(entry, draws=args.bootstrap).values()] for entry in metrics]
    return tabulate(rows, ["protocol", *NUMBERS], tablefmt="github")


def _save_thresholds(cfg, features: FeatureSet, protocols: Iterable[Protocol]) -> None:
    """Write same-person thresholds beside the checkpoint they belong to, or into the output folder without one."""
    folder = Path(cfg.MODEL.WEIGHTS).parent if cfg.MODEL.WEIGHTS else Path(cfg.OUTPUT_DIR)
    for protocol in protocols:
        path = folder / f"calibration_{str(protocol).replace('/', '_')}.json"
        thresholds(cfg, features, protocol).save(path)
        _logger.info("same-person thresholds of %s in %s", protocol, path)


def _set_up(cfg, args: Namespace):
    """Run the host's set-up, with its random generators bound to `SEED`."""
    console.tidy(setup_logger(cfg.OUTPUT_DIR, distributed_rank=comm.get_rank()))
    cfg.defrost()
    if cfg.SEED < 0:
        cfg.SEED = comm.shared_random_seed()
    cfg.freeze()
    # The host's set-up seeds with a number of its own; it has no key for one.
    defaults.seed_all_rng = partial(seed_all_rng, cfg.SEED + comm.get_rank())
    default_setup(cfg, args)
    _logger.info("seed %d, device %s", cfg.SEED, cfg.MODEL.DEVICE)
    return cfg


def _by_protocol(results: dict) -> dict[str, dict[str, float]]:
    """Return the numbers by the protocol's full name, as `TEST.EXPECTED_RESULTS` writes it."""
    found: dict[str, dict[str, float]] = {}
    for dataset, numbers in results.items():
        for key, value in numbers.items() if isinstance(numbers, dict) else ():
            protocol, _, number = key.partition("/")
            found.setdefault(f"{dataset}/{protocol}", {})[number] = value
    return found
