"""One training or evaluation run of mmengine's Runner, from a configuration file to results."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import is_main_process
from mmengine.logging import MMLogger
from mmengine.optim import AmpOptimWrapper
from mmengine.registry import METRICS, RUNNERS
from mmengine.runner import Runner

from agreid_plugin.engine import console
from agreid_plugin.engine.checks import MARKER, check_features_file, check_writable, report_full_disk
from agreid_plugin.engine.distributed import launch
from agreid_plugin.engine.report import report, save_thresholds
from agreid_plugin.engine.run_card import evaluation_card
from agreid_plugin.engine.signals import Interruption
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import load_features, save_features
from agreid_plugin.evaluation.evaluation_sets import EvaluationSet, computable
from agreid_plugin.evaluation.ranking_options import RankingOptions
from agreid_plugin.evaluation.results import FILE_NAME as RESULTS
from agreid_plugin.hosts.mmengine import compat
from agreid_plugin.hosts.mmengine.config.checks import BuildErrors, check_modules, default_scopes, find_type
from agreid_plugin.hosts.mmengine.config.loading import (
    each_dict,
    load_config,
    require_model,
    resolve_model,
    type_name,
    without_pretrained,
)
from agreid_plugin.hosts.mmengine.engine.command_runner import NOISE, CommandRunner
from agreid_plugin.hosts.mmengine.engine.launch import StepTold, check_batches, launch_runner
from agreid_plugin.hosts.mmengine.engine.metrics import MultiProtocolMetric
from agreid_plugin.hosts.mmengine.engine.observers import card_facts, close_run_cards
from agreid_plugin.hosts.mmengine.engine.runner_utils import method_of, metrics_of, plain_model
from agreid_plugin.hosts.mmengine.registry import METRICS as OWN_METRICS
from agreid_plugin.hosts.mmengine.registry import OPTIM_WRAPPERS
from agreid_plugin.inference.weights import load_weights, require_predictor, require_weights
from agreid_plugin.trust import trust

OF_TRAINING = (
    *("train_dataloader", "train_cfg", "optim_wrapper", "param_scheduler", "val_dataloader", "val_cfg"),
    "val_evaluator",
)
"""Keys that an evaluation does without."""
OF_METRIC = ("rerank", "save_features", "calibrate", "bootstrap")
"""Options of `fastreid eval` that only our metric heeds."""


def train(args: Namespace) -> None:
    """Train as `fastreid train` was asked to."""
    compat.install()
    with launch.started(args):
        cfg = _for_training(args)
        check_batches(cfg, launch.world_size(args))
        launch.claim(Path(cfg.work_dir), args)
        launch_runner(_train_process, args, cfg)


def evaluate(args: Namespace) -> None:
    """Evaluate as `fastreid eval` was asked to."""
    compat.install()
    with launch.started(args):
        _evaluate(args)


def _evaluate(args: Namespace) -> None:
    if args.save_attributes:
        raise InputError("--save-attributes is for configurations of fast-reid: name the .yml file with --config")
    cfg = _for_evaluation(args)
    check_writable(Path(cfg.work_dir))
    if args.save_features:
        check_features_file(Path(args.save_features))
    if args.features:
        with report_full_disk(Path(cfg.work_dir)):
            _evaluate_features(cfg, args)
        return
    if cfg.get("test_dataloader") is None:
        raise InputError(f"{args.config_file} has no test_dataloader: there is nothing to evaluate")
    _check_options(cfg, args)
    require_model(cfg)
    require_weights(args.weights)
    launch_runner(_evaluate_process, args, cfg)


def _check_options(cfg: Config, args: Namespace) -> None:
    """Refuse options that nothing in the configuration would heed."""
    asked = [name for name in OF_METRIC if getattr(args, name)]
    if asked and not _own_metrics(cfg):
        raise _unheeded(asked[0], "MultiProtocolMetric", "test_evaluator")
    if args.protocols and not _own_datasets(cfg):
        raise _unheeded("protocols", "ReIDDataset", "test_dataloader")


def _unheeded(name: str, part: str, key: str) -> InputError:
    option = f"--{name.replace('_', '-')}"
    return InputError(f"{option} needs agreid_plugin.{part} in {key}: add it, or leave {option} out")


def _for_training(args: Namespace) -> Config:
    cfg = load_config(args.config_file, args.overrides)
    cfg.work_dir = args.output or _work_dir(cfg)
    if cfg.get("train_dataloader") is None:
        raise InputError(f"{args.config_file} has no train_dataloader: there is nothing to train on")
    require_model(cfg)
    if _needs_a_gpu(cfg) and get_device() == "cpu":
        raise InputError(
            "mmengine's AmpOptimWrapper needs a GPU, and there is none: add `optim_wrapper.type "
            "agreid_plugin.AmpOptimWrapper`, which is off on a CPU"
        )
    cfg.model = resolve_model(cfg.model)
    _settle_resuming(cfg, args)
    return cfg


def _settle_resuming(cfg: Config, args: Namespace) -> None:
    """Go on with the folder's own run if --resume or the file asks for it, else with a file's `load_from`, as mmengine.

    With --resume alone, `load_from` names weights that a run begins with.
    """
    of_file = bool(cfg.get("resume"))
    args.resume = args.resume or of_file
    begun = (Path(cfg.work_dir) / MARKER).exists()
    if args.resume and begun:
        cfg.load_from = None  # or the Runner would resume from there
    cfg.resume = args.resume and (begun or (of_file and bool(cfg.get("load_from"))))


def _needs_a_gpu(cfg: Config) -> bool:
    """Tell mmengine's mixed precision from ours, which a configuration in our scope may call the same."""
    name = (cfg.get("optim_wrapper") or {}).get("type")
    return find_type(OPTIM_WRAPPERS, name, default_scopes(cfg)) is AmpOptimWrapper


def _for_evaluation(args: Namespace) -> Config:
    cfg = load_config(args.config_file, args.overrides)
    cfg.work_dir = args.output or str(Path(_work_dir(cfg)) / "eval")  # the run's own files stay as they are
    args.weights = args.weights or cfg.get("load_from")
    cfg.update(dict.fromkeys(OF_TRAINING), load_from=None, resume=False)
    if cfg.get("model"):
        cfg.model = without_pretrained(cfg.model)  # the checkpoint has it all
    for part in _own_datasets(cfg) if args.protocols else ():
        part["protocols"] = args.protocols
    for part in _own_metrics(cfg):
        if args.rerank and part.get("rerank") is None:
            part["rerank"] = {}
    # The hook tells results before confidence intervals can be had.
    cfg.custom_hooks = [hook for hook in cfg.get("custom_hooks") or [] if type_name(hook) != "Results"]
    return cfg


def _work_dir(cfg: Config) -> str:
    path = Path(cfg.filename).resolve()
    return cfg.get("work_dir") or str(Path("logs") / f"{path.parent.name}-{path.stem}".lower())


def _own_metrics(cfg: Config) -> list[dict]:
    """Return the metrics that are ours, or made of ours."""
    scopes = default_scopes(cfg)
    parts = [part for _, part in each_dict(cfg.get("test_evaluator"))]
    parts = [(part, find_type(OWN_METRICS, part.get("type"), scopes)) for part in parts]
    return [part for part, kind in parts if isinstance(kind, type) and issubclass(kind, MultiProtocolMetric)]


def _own_datasets(cfg: Config) -> list[dict]:
    return [part for _, part in each_dict(cfg.get("test_dataloader")) if type_name(part) == "ReIDDataset"]


def _runner(cfg: Config, launcher: str) -> Runner:
    cfg.launcher = launcher
    return RUNNERS.build(cfg) if "runner_type" in cfg else CommandRunner.from_cfg(cfg)


def _train_process(args: Namespace, launcher: str) -> None:
    trust(args.trust_checkpoint)  # a spawned process starts without
    with Interruption() as interruption, BuildErrors() as build_errors:
        runner = _runner(_for_training(args), launcher)
        check_modules(runner.cfg, plain_model(runner))
        runner.register_hook(StepTold(), priority="VERY_HIGH")
        runner.register_hook(build_errors)
        runner.interruption = interruption
        with close_run_cards(runner):
            runner.train()


def _evaluate_process(args: Namespace, launcher: str) -> None:
    trust(args.trust_checkpoint)
    with BuildErrors():
        runner = _runner(_for_evaluation(args), launcher)
        left_out = load_weights(plain_model(runner), args.weights)
        require_predictor(method_of(runner), left_out, "model.view", args.weights)
        metrics = metrics_of(runner.test_loop)
        for metric in metrics:
            metric.views = getattr(method_of(runner), "view_source", "")
        with _card(runner.cfg, args, [metric.test_set for metric in metrics], runner.seed):
            runner.test()
            if metrics and is_main_process():
                _tell(args, runner, metrics)


def _card(
    cfg: Config, args: Namespace, sets: Sequence[EvaluationSet], seed: int | None = None
) -> AbstractContextManager:
    if not is_main_process():
        return nullcontext()
    return evaluation_card(cfg.work_dir, args, sets, args.weights, seed=seed, **card_facts(cfg))


def _tell(args: Namespace, runner: Runner, metrics: list[MultiProtocolMetric]) -> None:
    for metric in metrics:
        metric.tell_unreadable(runner.work_dir)
        if args.save_features:
            save_features(args.save_features, metric.features)
            runner.logger.info("features of %d images in %s", len(metric.features.records), args.save_features)
        if args.calibrate:
            protocols = metric.test_set.protocols.values()
            save_thresholds(Path(args.weights).parent, metric.comparison, metric.features, protocols, runner.logger)
    found = [entry for metric in metrics for entry in metric.metrics]
    report(Path(runner.work_dir) / RESULTS, found, args.bootstrap, runner.logger)


def _evaluate_features(cfg: Config, args: Namespace) -> None:
    """Evaluate features that were extracted before: no model, no images."""
    logger = MMLogger("features", logger_name="mmengine")
    console.tidy(logger, NOISE)
    features = load_features(args.features)
    protocols = computable(features, args.protocols or _protocols(cfg), logger)
    comparison = configured_comparison(cfg)
    with _card(cfg, args, [EvaluationSet(features.dataset, {each.name: each for each in protocols})]):
        if args.calibrate:
            folder = Path(args.weights).parent if args.weights else Path(cfg.work_dir)
            save_thresholds(folder, comparison, features, protocols, logger)
        report(Path(cfg.work_dir) / RESULTS, comparison.compute(features, protocols), args.bootstrap, logger)


def _protocols(cfg: Config) -> list[str]:
    return [name for part in _own_datasets(cfg) for name in part.get("protocols") or ()]


def configured_comparison(cfg: Config) -> RankingOptions:
    """Return how the configuration's metric of ours compares features."""
    parts = _own_metrics(cfg)
    if not parts:
        raise InputError("test_evaluator has no agreid_plugin.MultiProtocolMetric, which evaluates features")
    with BuildErrors():
        return METRICS.build(parts[0]).comparison
