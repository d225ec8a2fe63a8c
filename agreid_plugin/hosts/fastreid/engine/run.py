"""One training or evaluation run, from a configuration file to results, in one process or many."""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch
from fastreid.engine import default_setup
from fastreid.evaluation import verify_results
from fastreid.modeling.meta_arch import META_ARCH_REGISTRY
from fastreid.utils import comm
from fastreid.utils.logger import setup_logger

from agreid_plugin.data.workers import crashes_named
from agreid_plugin.engine import console
from agreid_plugin.engine.checks import check_features_file, check_writable, report_full_disk
from agreid_plugin.engine.distributed import launch
from agreid_plugin.engine.report import PRINTED, report, save_thresholds, speak_through
from agreid_plugin.engine.run_card import Card, evaluation_card, seed_of
from agreid_plugin.engine.signals import Interruption
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import load_features, save_features
from agreid_plugin.evaluation.evaluation_sets import EvaluationSet, add_validation, computable
from agreid_plugin.evaluation.results import FILE_NAME as RESULTS
from agreid_plugin.hosts.fastreid import compat
from agreid_plugin.hosts.fastreid.config import checks
from agreid_plugin.hosts.fastreid.config.checks import check_best_metric
from agreid_plugin.hosts.fastreid.config.loading import import_all, load_config, use_cpu_without_gpu
from agreid_plugin.hosts.fastreid.data.attributes import with_attributes
from agreid_plugin.hosts.fastreid.data.datasets import dataset_of, make_missing
from agreid_plugin.hosts.fastreid.data.predictions import (
    accuracy,
    accuracy_table,
    check_predictions_file,
    predict,
    require_describing,
    write_predictions,
)
from agreid_plugin.hosts.fastreid.engine.distributed import in_local_group, plain
from agreid_plugin.hosts.fastreid.engine.evaluator import comparison, test_sets
from agreid_plugin.hosts.fastreid.engine.observers import card_facts
from agreid_plugin.hosts.fastreid.engine.trainer import Trainer
from agreid_plugin.hosts.fastreid.inference import load_trained
from agreid_plugin.hosts.fastreid.models.clip import with_activation
from agreid_plugin.inference.weights import require_predictor, require_weights
from agreid_plugin.trust import trust

_logger = logging.getLogger("fastreid.run")

NOISE = ("Exception during training",)
"""Messages of the host's with a traceback, which is shown where the error ends the command; the log file has them."""


def train(args: Namespace) -> None:
    """Train as `fastreid train` was asked to."""
    compat.install()
    with launch.started(args):
        cfg = _configured(args)
        checks.check_config(cfg)
        make_missing(cfg)
        _check_data(cfg, launch.world_size(args))
        cfg = with_activation(with_attributes(cfg))
        launch.claim(Path(cfg.OUTPUT_DIR), args)
        _launch(_train_process, cfg, args)


def _check_data(cfg, processes: int) -> None:
    """Check what the datasets decide, before the run's folder is made."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # the run reads them again, and its log has what is to be said of them
    try:
        checks.check_processes(cfg, processes)
        check_best_metric(cfg, [add_validation(test_set) for test_set in test_sets(cfg)])
    finally:
        logging.disable(before)


def evaluate(args: Namespace) -> None:
    """Evaluate as `fastreid eval` was asked to."""
    compat.install()
    with launch.started(args):
        _evaluate(args)


def _evaluate(args: Namespace) -> None:
    cfg = _configured(args)
    checks.check_config(cfg)
    check_writable(Path(cfg.OUTPUT_DIR))
    if args.save_features:
        _check_features_file(cfg, Path(args.save_features))
    if args.save_attributes:
        _check_attributes_file(cfg, args)
    if args.features:
        _process(_evaluate_features, cfg, args)
        return
    require_weights(cfg.MODEL.WEIGHTS)
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
    use_cpu_without_gpu(cfg)
    cfg.freeze()
    return cfg


def _check_features_file(cfg, path: Path) -> None:
    datasets = sorted({dataset_of(name) for name in cfg.DATASETS.TESTS})
    if len(datasets) > 1:
        raise InputError(f"--save-features keeps one dataset's features, DATASETS.TESTS names {', '.join(datasets)}")
    check_features_file(path)


def _check_attributes_file(cfg, args: Namespace) -> None:
    if args.features:
        raise InputError("--save-attributes asks the model, which --features does without: leave one of them out")
    check_predictions_file(args.save_attributes)
    require_describing(cfg, META_ARCH_REGISTRY.get(cfg.MODEL.META_ARCHITECTURE))


def _launch(main: Callable, cfg, args: Namespace) -> None:
    launch.launch(in_local_group, (_process, main, cfg, args), args)


def _process(main: Callable, cfg, args: Namespace) -> None:
    with report_full_disk(Path(cfg.OUTPUT_DIR)):
        main(cfg, args)


def _train_process(cfg, args: Namespace) -> None:
    with crashes_named(), Interruption() as interruption:  # workers begin with the trainer
        cfg = _set_up(cfg, args, resumed=args.resume)
        trainer = Trainer(cfg)
        trainer.config_file, trainer.interruption = args.config_file, interruption
        trainer.resume_or_load(resume=args.resume)
        results = trainer.train()
    if results and comm.is_main_process():
        verify_results(cfg, _by_protocol(results))


def _evaluate_process(cfg, args: Namespace) -> None:
    cfg = _set_up(cfg, args)
    sets = test_sets(cfg)
    with crashes_named(), _card(cfg, args, sets) if comm.is_main_process() else nullcontext():
        _evaluate_model(cfg, args, sets)


def _card(cfg, args: Namespace, sets: Sequence[EvaluationSet]) -> Card:
    return evaluation_card(cfg.OUTPUT_DIR, args, sets, cfg.MODEL.WEIGHTS, **card_facts(cfg))


def _evaluate_model(cfg, args: Namespace, sets: Sequence[EvaluationSet]) -> None:
    model = _load_model(cfg)
    evaluators = Trainer.run_test_sets(cfg, model, sets)
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
            protocols = evaluator.test_set.protocols.values()
            save_thresholds(_model_folder(cfg), comparison(cfg), evaluator.features, protocols, _logger)
    metrics = [entry for evaluator in evaluators.values() for entry in evaluator.metrics]
    report(Path(cfg.OUTPUT_DIR) / RESULTS, metrics, args.bootstrap, _logger)
    verify_results(cfg, _by_protocol({name: evaluator.numbers for name, evaluator in evaluators.items()}))


def _save_attributes(cfg, args: Namespace, model: torch.nn.Module, sets: Sequence[EvaluationSet]) -> None:
    """Write what the model takes every test image's attributes for, and tell how often it is right."""
    rows = [row for test_set in sets for row in predict(cfg, model, test_set)]
    if not comm.is_main_process():
        return
    write_predictions(args.save_attributes, rows)
    _logger.info("attributes of the test images in %s", args.save_attributes)
    known = accuracy(rows, [record for test_set in sets for record in test_set.records])
    if known:
        _logger.info("attributes that are right, in percent:\n%s", accuracy_table(known), extra=PRINTED)


def _load_model(cfg):
    model, left_out = load_trained(cfg)
    require_predictor(plain(model), left_out, "MODEL.VIEW", cfg.MODEL.WEIGHTS)
    return model


def _evaluate_features(cfg, args: Namespace) -> None:
    """Evaluate features that were extracted before: no model, no images."""
    cfg = _set_up(cfg, args)
    features = load_features(args.features)
    protocols = computable(features, cfg.TEST.PROTOCOLS, _logger)
    tested = EvaluationSet(features.dataset, {each.name: each for each in protocols})
    with _card(cfg, args, [tested]):
        if args.calibrate:
            save_thresholds(_model_folder(cfg), comparison(cfg), features, protocols, _logger)
        report(Path(cfg.OUTPUT_DIR) / RESULTS, comparison(cfg).compute(features, protocols), args.bootstrap, _logger)


def _model_folder(cfg) -> Path:
    """Return where thresholds go: beside the checkpoint they belong to, into the output folder without one."""
    return Path(cfg.MODEL.WEIGHTS).parent if cfg.MODEL.WEIGHTS else Path(cfg.OUTPUT_DIR)


def _set_up(cfg, args: Namespace, resumed: bool = False):
    """Run the host's set-up, with its random generators bound to `SEED`, which a resumed run that drew one keeps."""
    trust(args.trust_checkpoint)  # a spawned process starts without
    import_all(cfg.CUSTOM_IMPORTS)
    logger = setup_logger(cfg.OUTPUT_DIR, distributed_rank=comm.get_rank())
    console.tidy(logger, NOISE)
    speak_through(logger)
    cfg.defrost()
    if cfg.SEED < 0:
        drawn = seed_of(cfg.OUTPUT_DIR) if resumed else None
        cfg.SEED = comm.shared_random_seed() if drawn is None else drawn
    cfg.freeze()
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
