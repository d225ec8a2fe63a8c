"""mmengine as a host of runs: what `engine.run.Host` asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import is_main_process
from mmengine.logging import MMLogger
from mmengine.optim import AmpOptimWrapper
from mmengine.registry import RUNNERS
from mmengine.runner import Runner
from mmengine.utils import import_modules_from_strings

from agreid_plugin.engine.checks import MARKER
from agreid_plugin.engine.distributed.environment import NONE, PYTORCH
from agreid_plugin.engine.report import forward_logs, tidy_console
from agreid_plugin.engine.run import Request, Run
from agreid_plugin.engine.signals import Interruption
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.collector import Evaluation
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
from agreid_plugin.hosts.mmengine.config.unread_keys import UnreadNames, record_reads
from agreid_plugin.hosts.mmengine.engine.features import prepare_evaluation
from agreid_plugin.hosts.mmengine.engine.hooks import card_facts, close_run_cards
from agreid_plugin.hosts.mmengine.engine.runner import (
    NOISE,
    ReIDRunner,
    StepReporter,
    check_batches,
    get_method,
    get_metrics,
    plain_model,
)
from agreid_plugin.hosts.mmengine.inference import comparison, find_metrics  # noqa: F401 - part of the host
from agreid_plugin.hosts.mmengine.registry import OPTIM_WRAPPERS
from agreid_plugin.inference.weights import load_weights

VIEW_KEY = "model.view"
TRAINING_KEYS = (
    *("train_dataloader", "train_cfg", "optim_wrapper", "param_scheduler", "val_dataloader", "val_cfg"),
    "val_evaluator",
)
"""Keys that an evaluation does without."""
METRIC_OPTIONS = ("rerank", "save_features", "calibrate", "bootstrap")
"""Options of `fastreid eval` that only our metric heeds."""


def install() -> None:
    """Import the host, fixed, with our components in its registries."""
    compat.install()


def read(request: Request) -> Run:
    """Read the configuration with overrides and options."""
    cfg = load_config(request.config_file, request.overrides)
    if request.eval_only:
        return _read_for_evaluation(cfg, request)
    cfg.work_dir = request.output or _work_dir(cfg)
    resume = request.resume or bool(cfg.get("resume"))
    return Run(request, cfg, Path(cfg.work_dir), resume=resume, **_distribution(cfg))


def _read_for_evaluation(cfg: Config, request: Request) -> Run:
    cfg.work_dir = request.output or str(Path(_work_dir(cfg)) / "eval")  # the run's own files stay as they are
    weights = request.weights or cfg.get("load_from")
    cfg.update(dict.fromkeys(TRAINING_KEYS), load_from=None, resume=False)
    for part in _own_datasets(cfg) if request.protocols else ():
        part["protocols"] = request.protocols
    for part in find_metrics(cfg):
        if request.rerank and part.get("rerank") is None:
            part["rerank"] = {}
    # The hook tells results before confidence intervals can be had.
    cfg.custom_hooks = [hook for hook in cfg.get("custom_hooks") or [] if type_name(hook) != "Results"]
    protocols = request.protocols or _protocols(cfg)
    return Run(request, cfg, Path(cfg.work_dir), weights=weights, protocols=protocols, **_distribution(cfg))


def _distribution(cfg: Config) -> dict[str, Any]:
    """Return what `env_cfg` says of several processes."""
    keys = (cfg.get("env_cfg") or {}).get("dist_cfg") or {}
    return {"timeout": keys.get("timeout"), "backend": keys.get("backend") if torch.cuda.is_available() else None}


def check(run: Run, world_size: int) -> None:
    """Check the configuration and the options; what the data decide, the hook `IdentityCheck` finds out."""
    cfg, request = run.config, run.request
    if request.save_attributes:
        raise InputError("--save-attributes is for configurations of fast-reid: name the .yml file with --config")
    if request.features:
        return
    if request.eval_only:
        if cfg.get("test_dataloader") is None:
            raise InputError(f"{request.config_file} has no test_dataloader: there is nothing to evaluate")
        _check_options(cfg, request)
        require_model(cfg)
        return
    if cfg.get("train_dataloader") is None:
        raise InputError(f"{request.config_file} has no train_dataloader: there is nothing to train on")
    require_model(cfg)
    if _needs_a_gpu(cfg) and get_device() == "cpu":
        raise InputError(
            "mmengine's AmpOptimWrapper needs a GPU, and there is none: add `optim_wrapper.type "
            "agreid_plugin.AmpOptimWrapper`, which is off on a CPU"
        )
    check_batches(cfg, world_size)


def _check_options(cfg: Config, request: Request) -> None:
    """Refuse options that no part of the configuration uses."""
    asked = [name for name in METRIC_OPTIONS if getattr(request, name)]
    if asked and not find_metrics(cfg):
        raise _unheeded(asked[0], "MultiProtocolMetric", "test_evaluator")
    if request.protocols and not _own_datasets(cfg):
        raise _unheeded("protocols", "ReIDDataset", "test_dataloader")


def _unheeded(name: str, part: str, key: str) -> InputError:
    option = f"--{name.replace('_', '-')}"
    return InputError(f"{option} needs agreid_plugin.{part} in {key}: add it, or leave {option} out")


def _needs_a_gpu(cfg: Config) -> bool:
    """Tell mmengine's mixed precision from ours, which a configuration in our scope may call the same."""
    name = (cfg.get("optim_wrapper") or {}).get("type")
    return find_type(OPTIM_WRAPPERS, name, default_scopes(cfg)) is AmpOptimWrapper


def _work_dir(cfg: Config) -> str:
    path = Path(cfg.filename).resolve()
    return cfg.get("work_dir") or str(Path("logs") / f"{path.parent.name}-{path.stem}".lower())


def _own_datasets(cfg: Config) -> list[dict]:
    return [part for _, part in each_dict(cfg.get("test_dataloader")) if type_name(part) == "ReIDDataset"]


def _protocols(cfg: Config) -> list[str]:
    return [name for part in _own_datasets(cfg) for name in part.get("protocols") or ()]


def make_datasets(run: Run, world_size: int) -> None:
    """Leave it to the datasets: a recipe makes them by itself, as mmengine's own tools run it, too."""


@contextmanager
def process(run: Run) -> Iterator[Run]:
    """Resolve the configuration; the Runner sets up group, log and seed when it is built."""
    imports = run.config.get("custom_imports")
    if imports:
        import_modules_from_strings(**imports)
    if run.request.features:  # there will be no Runner
        logger = MMLogger("features", logger_name="mmengine")
        tidy_console(logger, NOISE)
        forward_logs(logger)
    yield replace(run, config=resolve(run))


def resolve(run: Run) -> Config:
    """Return the configuration with what it leaves to files, and to the process that it runs in.

    With --resume the run in the folder goes on, or where there is none `load_from` names weights to begin with. Where
    the file itself has `resume` it goes on with its `load_from`, as in mmengine.
    """
    cfg, of_file = run.config.copy(), bool(run.config.get("resume"))
    if cfg.get("model"):  # of an evaluation the checkpoint has it all
        cfg.model = without_pretrained(cfg.model) if run.request.eval_only else resolve_model(cfg.model)
    has_begun = (run.output / MARKER).exists()
    if run.resume and has_begun:
        cfg.load_from = None  # or the Runner would resume from there
    cfg.resume = run.resume and (has_begun or (of_file and bool(cfg.get("load_from"))))
    cfg.launcher = PYTORCH if dist.is_initialized() else NONE  # the Runner finds the group made
    return cfg


def _build_runner(cfg: Config) -> Runner:
    return RUNNERS.build(cfg) if "runner_type" in cfg else ReIDRunner.from_cfg(cfg)


class Training:
    """A Runner that trains, at the point where the run goes on."""

    def __init__(self, run: Run, interruption: Interruption):
        self._errors = BuildErrors()
        with self._errors:
            self._runner = _build_runner(run.config)
            check_modules(self._runner.cfg, plain_model(self._runner))
            self._runner.register_hook(StepReporter(), priority="VERY_HIGH")
            self._runner.register_hook(self._errors)
            self._runner.cfg = record_reads(self._runner.cfg)
            self._runner.register_hook(UnreadNames(run.request.config_file, run.request.overrides))
            self._runner.interruption = interruption

    def train(self) -> None:
        """Train; the Runner builds its loops, and resumes, when it begins."""
        with self._errors, close_run_cards(self._runner):
            self._runner.train()


class Testing:
    """A Runner that tests.

    Attributes:
        method: the method in the model, or a model of another toolbox.
        test_sets: those of our metrics.
    """

    def __init__(self, run: Run):
        with BuildErrors():
            self.runner = _build_runner(run.config)
            self._metrics = get_metrics(self.runner.test_loop)
        self.method = get_method(self.runner)
        self.test_sets = [metric.test_set for metric in self._metrics]

    def load(self, weights: str) -> list[str]:
        """Load a checkpoint; returns the names of tensors that it has nothing for."""
        return load_weights(plain_model(self.runner), weights)

    def evaluate(self) -> list[Evaluation]:
        """Test in all processes; returns what metrics of ours have found, in the main one."""
        prepare_evaluation(self.runner, self._metrics)
        with BuildErrors():
            self.runner.test()
        if not is_main_process():
            return []
        for metric in self._metrics:
            metric.list_unreadable(self.runner.work_dir)
        return [metric.evaluation for metric in self._metrics]

    def verify(self) -> None:
        """Do nothing: no key of mmengine has expected numbers."""


build_training, build_testing = Training, Testing


def facts(run: Run, testing: Testing | None) -> dict[str, Any]:
    """Return host and configuration for the run card of an evaluation."""
    if testing is None:
        return {"seed": None, **card_facts(run.config)}
    return {"seed": testing.runner.seed, **card_facts(testing.runner.cfg)}
