"""fast-reid as a host of runs: what `engine.run.Host` asks for."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed as dist
from fastreid.engine import default_setup
from fastreid.evaluation import verify_results
from fastreid.modeling.meta_arch import META_ARCH_REGISTRY
from fastreid.utils import comm
from fastreid.utils.logger import setup_logger

from agreid_plugin.engine.checks import check_test_labels
from agreid_plugin.engine.distributed.process_group import current_process
from agreid_plugin.engine.report import PRINTED, forward_logs, tidy_console
from agreid_plugin.engine.run import Request, Run
from agreid_plugin.engine.run_card import read_seed
from agreid_plugin.engine.signals import Interruption
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.collector import Evaluation
from agreid_plugin.evaluation.evaluation_sets import add_validation
from agreid_plugin.hosts.fastreid import compat
from agreid_plugin.hosts.fastreid.config import checks
from agreid_plugin.hosts.fastreid.config.loading import import_all, load_config, use_cpu_without_gpu, with_value
from agreid_plugin.hosts.fastreid.config.unread_keys import record_reads
from agreid_plugin.hosts.fastreid.data.attributes import with_attributes
from agreid_plugin.hosts.fastreid.data.datasets import get_dataset_name, is_made_first, make_missing
from agreid_plugin.hosts.fastreid.data.predictions import (
    check_predictions_file,
    compute_accuracy,
    format_accuracy,
    predict,
    require_describing,
    write_predictions,
)
from agreid_plugin.hosts.fastreid.engine.distributed import local_group
from agreid_plugin.hosts.fastreid.engine.evaluator import comparison, test_sets  # noqa: F401 - part of the host
from agreid_plugin.hosts.fastreid.engine.hooks import card_facts
from agreid_plugin.hosts.fastreid.engine.trainer import Trainer
from agreid_plugin.hosts.fastreid.models.backbones import with_activation
from agreid_plugin.hosts.fastreid.models.base import build_for_inference
from agreid_plugin.inference.weights import load_weights

_logger = logging.getLogger("fastreid.run")

VIEW_KEY = "MODEL.VIEW"
NOISE = ("Exception during training",)
"""Messages of the host with a traceback, which is shown where the error ends the command; the log file has them."""


def install() -> None:
    """Import the host, fixed, with our components in its registries."""
    compat.install()


def read(request: Request) -> Run:
    """Read the configuration with overrides and options."""
    cfg = load_config(request.config_file, request.overrides)
    if request.output:
        cfg.OUTPUT_DIR = request.output
    elif request.eval_only:
        cfg.OUTPUT_DIR = str(Path(cfg.OUTPUT_DIR) / "eval")  # the run's own files stay as they are
    if request.eval_only:
        cfg.MODEL.BACKBONE.PRETRAIN = False  # the checkpoint has it all
        cfg.MODEL.WEIGHTS = request.weights or cfg.MODEL.WEIGHTS
        cfg.TEST.PROTOCOLS = request.protocols or cfg.TEST.PROTOCOLS
        cfg.TEST.RERANK.ENABLED = request.rerank or cfg.TEST.RERANK.ENABLED
    use_cpu_without_gpu(cfg)
    cfg.freeze()
    return Run(
        request,
        cfg,
        Path(cfg.OUTPUT_DIR),
        resume=request.resume,
        weights=cfg.MODEL.WEIGHTS or None,
        protocols=cfg.TEST.PROTOCOLS,
    )


def check(run: Run, world_size: int) -> None:
    """Check the configuration, the options, and the data where they are there already."""
    cfg, request = run.config, run.request
    checks.check_config(cfg)
    if request.save_features:
        datasets = sorted({get_dataset_name(name) for name in cfg.DATASETS.TESTS})
        if len(datasets) > 1:
            named = ", ".join(datasets)
            raise InputError(f"--save-features keeps one dataset's features, DATASETS.TESTS names {named}")
    if request.save_attributes:
        if request.features:
            raise InputError("--save-attributes asks the model, which --features does without: leave one of them out")
        check_predictions_file(request.save_attributes)
        require_describing(cfg, META_ARCH_REGISTRY.get(cfg.MODEL.META_ARCHITECTURE))
    if not request.eval_only and not is_made_first(cfg):
        _check_data(cfg, world_size)


def make_datasets(run: Run, world_size: int) -> None:
    """Make AG-Synth where it is missing, and check what training finds in it."""
    is_new = is_made_first(run.config)
    make_missing(run.config)
    if is_new and not run.request.eval_only:
        _check_data(run.config, world_size)


def _check_data(cfg, world_size: int) -> None:
    """Check what the datasets decide."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # the run's own log has what is to be said of them
    try:
        checks.check_processes(cfg, world_size)
        checks.check_best_metric(cfg, [add_validation(test_set) for test_set in test_sets(cfg)])
    finally:
        logging.disable(before)


@contextmanager
def process(run: Run) -> Iterator[Run]:
    """Set up this process as the host does, with its generators bound to `SEED`; a resumed run keeps a drawn one."""
    cfg = record_reads(run.config)
    import_all(cfg.CUSTOM_IMPORTS)
    with local_group(current_process().place.machine) if dist.is_initialized() else nullcontext():
        logger = setup_logger(cfg.OUTPUT_DIR, distributed_rank=comm.get_rank())
        tidy_console(logger, NOISE)
        forward_logs(logger)
        cfg = with_seed(resolve_files(cfg), run.resume)
        default_setup(cfg, run.request)
        _logger.info("seed %d, device %s", cfg.SEED, cfg.MODEL.DEVICE)
        yield replace(run, config=cfg)


def resolve_files(cfg):
    """Return the configuration with what it leaves to files: attributes of its dataset, the activation of CLIP."""
    return with_activation(with_attributes(cfg))


def with_seed(cfg, resume: bool):
    """Return the configuration with a drawn seed where `SEED` is negative; a run that goes on keeps its own."""
    if cfg.SEED >= 0:
        return cfg
    drawn = read_seed(cfg.OUTPUT_DIR) if resume else None
    return with_value(cfg, "SEED", comm.shared_random_seed() if drawn is None else drawn)


class Training:
    """fast-reid's trainer at the point where the run goes on."""

    def __init__(self, run: Run, interruption: Interruption):
        self._trainer = Trainer(run.config)
        self._trainer.config_file, self._trainer.interruption = run.request.config_file, interruption
        self._trainer.resume_or_load(resume=run.resume)

    def train(self) -> None:
        """Train, and compare the last evaluation with `TEST.EXPECTED_RESULTS`."""
        verify(self._trainer.cfg, self._trainer.train())


class Testing:
    """A model of fast-reid with its test sets.

    Attributes:
        method: the model.
        test_sets: what `DATASETS.TESTS` names.
    """

    def __init__(self, run: Run):
        self._run = run
        self.test_sets = test_sets(run.config)
        self.method = build_for_inference(run.config)
        for test_set in self.test_sets:
            check_test_labels(self.method, test_set, VIEW_KEY)

    def load(self, weights: str) -> list[str]:
        """Load a checkpoint; returns the names of tensors that it has nothing for."""
        return load_weights(self.method, weights)

    def evaluate(self) -> list[Evaluation]:
        """Evaluate in all processes, and write predicted attributes if they are asked for."""
        cfg, path = self._run.config, self._run.request.save_attributes
        evaluators = Trainer.run_test_sets(cfg, self.method, self.test_sets)
        if path:
            self._save_attributes(path)
        if not comm.is_main_process():
            return []
        self._numbers = {name: evaluator.numbers for name, evaluator in evaluators.items()}
        return [evaluator.evaluation for evaluator in evaluators.values()]

    def verify(self) -> None:
        """Compare the numbers with `TEST.EXPECTED_RESULTS`."""
        verify(self._run.config, self._numbers)

    def _save_attributes(self, path: str) -> None:
        """Write what the model takes every test image's attributes for, and log how often it is right."""
        rows = [row for test_set in self.test_sets for row in predict(self._run.config, self.method, test_set)]
        if not comm.is_main_process():
            return
        write_predictions(path, rows)
        _logger.info("attributes of the test images in %s", path)
        known = compute_accuracy(rows, [record for test_set in self.test_sets for record in test_set.records])
        if known:
            _logger.info("attributes that are right, in percent:\n%s", format_accuracy(known), extra=PRINTED)


build_training, build_testing = Training, Testing


def facts(run: Run, testing: Testing | None) -> dict[str, Any]:  # noqa: ARG001 - mmengine draws its seed when it builds
    """Return host and configuration for the run card of an evaluation."""
    return card_facts(run.config)


def verify(cfg, results: dict | None) -> None:
    """Compare the results of an evaluation, if there are any, with `TEST.EXPECTED_RESULTS` in the main process."""
    if results and comm.is_main_process():
        verify_results(cfg, _by_protocol(results))


def _by_protocol(results: dict) -> dict[str, dict[str, float]]:
    """Return the numbers by the protocol's full name, as `TEST.EXPECTED_RESULTS` writes it."""
    found: dict[str, dict[str, float]] = {}
    for dataset, numbers in results.items():
        for key, value in numbers.items() if isinstance(numbers, dict) else ():
            protocol, _, number = key.partition("/")
            found.setdefault(f"{dataset}/{protocol}", {})[number] = value
    return found
