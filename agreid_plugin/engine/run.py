"""The order of a run, training or evaluation, for either host: what a host has to offer is `Host`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from agreid_plugin.data.datasets import parse_once
from agreid_plugin.data.workers import name_worker_crashes
from agreid_plugin.engine.checks import check_features_file, check_writable, remove_unless_begun, report_full_disk
from agreid_plugin.engine.distributed import launch
from agreid_plugin.engine.distributed.environment import LaunchOptions
from agreid_plugin.engine.report import report, save_thresholds
from agreid_plugin.engine.run_card import Card, evaluation_card
from agreid_plugin.engine.signals import Interruption, is_main_process
from agreid_plugin.evaluation import load_features, save_features
from agreid_plugin.evaluation.collector import Evaluation
from agreid_plugin.evaluation.evaluation_sets import EvaluationSet, computable
from agreid_plugin.evaluation.ranking_options import RankingOptions
from agreid_plugin.evaluation.results import FILE_NAME as RESULTS
from agreid_plugin.host import find_host, load_host
from agreid_plugin.inference.weights import require_predictor, require_weights
from agreid_plugin.trust import trust

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """What `fastreid train` or `fastreid eval` was asked for.

    Attributes:
        config_file: the configuration, whose ending picks the host.
        overrides: `KEY VALUE ...` on top of it.
        output: folder of the run; None takes the configuration's.
        trust_checkpoint: whether weight files may run code.
        launch: processes to start, or who has started them.
        resume: continue the run in the folder.
        eval_only: evaluate; the rest of the attributes is of an evaluation.
        weights: checkpoint to evaluate; None takes the configuration's.
        protocols: those to compute; None takes the configuration's.
        rerank: re-rank by shared neighbors.
        bootstrap: draws of identities for confidence intervals.
        calibrate: save same-person thresholds beside the checkpoint.
        features: file of features to evaluate in place of a model.
        save_features: file to keep the extracted features in.
        save_attributes: file to keep predicted attributes in.
    """

    config_file: str
    overrides: Sequence[str] = ()
    output: str | None = None
    trust_checkpoint: bool = False
    launch: LaunchOptions = field(default_factory=LaunchOptions)
    resume: bool = False
    eval_only: bool = False
    weights: str | None = None
    protocols: Sequence[str] | None = None
    rerank: bool = False
    bootstrap: int | None = None
    calibrate: bool = False
    features: str | None = None
    save_features: str | None = None
    save_attributes: str | None = None


@dataclass(frozen=True)
class Run:
    """A run whose configuration has been read; every process is handed a copy.

    Attributes:
        request: what the command was asked for.
        config: the host's own configuration.
        output: folder of the run.
        resume: whether it goes on from a checkpoint in the folder, if there is one.
        weights: checkpoint to evaluate.
        protocols: short names of those to compute; none takes all.
        timeout: seconds that processes wait for each other, None for the default.
        backend: of torch's process group, None for the default.
    """

    request: Request
    config: Any
    output: Path
    resume: bool = False
    weights: str | None = None
    protocols: Sequence[str] = ()
    timeout: float | None = None
    backend: str | None = None

    @property
    def model_folder(self) -> Path:
        """Folder of the checkpoint, where its thresholds belong; the output folder without one."""
        return Path(self.weights).parent if self.weights else self.output


class Training(Protocol):
    """A model with its data, optimizer and hooks, ready to train."""

    def train(self) -> None:
        """Train in the host's own loop, with its resume and its checkpoints."""


class Testing(Protocol):
    """A model with its evaluation sets, ready to be evaluated.

    Attributes:
        method: the method that the model is or has in it, or a model of the host's.
        test_sets: what it is evaluated on.
    """

    method: Any
    test_sets: Sequence[EvaluationSet]

    def load(self, weights: str) -> list[str]:
        """Load a checkpoint; returns the names of tensors that it has nothing for."""

    def evaluate(self) -> Sequence[Evaluation]:
        """Evaluate in all processes; returns one evaluation a dataset in the main one, nothing in the others."""

    def verify(self) -> None:
        """Compare the numbers with those that the configuration expects, where the host can."""


class Host(Protocol):
    """What a run needs of a host; the module `hosts/<host>/host.py` has these functions.

    A configuration changes at three moments, each in one function of a host: with the files that it names and the
    process that it runs in (`process`), and with the training set (where the host builds its trainer).
    """

    VIEW_KEY: str
    """Key of the configuration that says where a model has the views of test images from."""

    def install(self) -> None:
        """Import the host, fixed, with our components in its registries."""

    def read(self, request: Request) -> Run:
        """Read the configuration with overrides and options; neither data nor model is looked at."""

    def check(self, run: Run, world_size: int) -> None:
        """Refuse what cannot work, as far as can be known before anything is written or started."""

    def make_datasets(self, run: Run, world_size: int) -> None:
        """Make AG-Synth where the configuration asks for it and it is missing."""

    def process(self, run: Run) -> AbstractContextManager[Run]:
        """Set up this process: local group, log, seed; gives the run with its configuration resolved."""

    def build_training(self, run: Run, interruption: Interruption) -> Training:
        """Build the host's trainer, at the point where the run goes on."""

    def build_testing(self, run: Run) -> Testing:
        """Build the model without its weights, and read what it is evaluated on."""

    def facts(self, run: Run, testing: Testing | None) -> dict[str, Any]:
        """Return host and configuration for the run card of an evaluation."""

    def comparison(self, config: Any) -> RankingOptions:
        """Return how the configuration wants features compared."""


def run(request: Request) -> None:
    """Train or evaluate as a command was asked to, in one process or many.

    Raises:
        InputError: something of the request, the configuration or the data is wrong.
        RunError: a process was lost.
        Stopped: a signal ended a training, whose checkpoint is written.
    """
    options = request.launch
    with launch.join_launcher(options), parse_once():
        host, world_size = _install(request), launch.world_size(options)
        run = host.read(request)
        host.check(run, world_size)
        _check_files(run)
        with nullcontext() if request.eval_only else remove_unless_begun(run.output):
            if request.eval_only:
                check_writable(run.output)
            else:
                run = replace(run, resume=launch.claim(run.output, run.resume))
            if request.features:
                _process(run)
                return
            host.make_datasets(run, world_size)
            launch.launch(_process, (run,), options, run.timeout, run.backend, modules=(host.__name__,))


def _install(request: Request) -> Host:
    host = load_host(find_host(request.config_file))
    host.install()
    return host


def _check_files(run: Run) -> None:
    """Check the files that an evaluation reads and writes besides the configuration's."""
    if run.request.save_features:
        check_features_file(Path(run.request.save_features))
    if run.request.eval_only and not run.request.features:
        require_weights(run.weights)


def _process(run: Run) -> None:
    """Do one process's part."""
    request = run.request
    trust(request.trust_checkpoint)  # a spawned process starts without
    host = _install(request)
    with report_full_disk(run.output), name_worker_crashes(), parse_once():
        if request.features:
            _evaluate_features(host, run)
        elif request.eval_only:
            _evaluate(host, run)
        else:
            _train(host, run)


def _train(host: Host, run: Run) -> None:
    with Interruption() as interruption, host.process(run) as run:  # data workers begin with the trainer
        host.build_training(run, interruption).train()


def _evaluate(host: Host, run: Run) -> None:
    with host.process(run) as run:
        testing = host.build_testing(run)
        require_predictor(testing.method, testing.load(run.weights), host.VIEW_KEY, run.weights)
        facts = host.facts(run, testing)
        with _card(run, testing.test_sets, facts) if is_main_process() else nullcontext():
            evaluations = testing.evaluate()
            if evaluations:
                _report(run, evaluations)
                testing.verify()


def _evaluate_features(host: Host, run: Run) -> None:
    """Evaluate features that were extracted before: no model, no images."""
    with host.process(run) as run:
        features, comparison = load_features(run.request.features), host.comparison(run.config)
        protocols = {each.name: each for each in computable(features, run.protocols, _logger)}
        test_set = EvaluationSet(features.dataset, protocols)
        with _card(run, [test_set], host.facts(run, None)):
            metrics = comparison.compute(features, protocols.values())
            _report(run, [Evaluation(test_set, features, metrics, comparison)])


def _card(run: Run, sets: Sequence[EvaluationSet], facts: dict[str, Any]) -> Card:
    return evaluation_card(run.output, run.request, sets, run.weights, **facts)


def _report(run: Run, evaluations: Sequence[Evaluation]) -> None:
    """Write features, thresholds and results, as far as they are asked for."""
    request = run.request
    for each in evaluations:
        if request.save_features:
            save_features(request.save_features, each.features)
            _logger.info("features of %d images in %s", len(each.features.records), request.save_features)
        if request.calibrate:
            protocols = each.test_set.protocols.values()
            save_thresholds(run.model_folder, each.comparison, each.features, protocols, _logger)
    metrics = [entry for each in evaluations for entry in each.metrics]
    report(run.output / RESULTS, metrics, request.bootstrap, _logger)
