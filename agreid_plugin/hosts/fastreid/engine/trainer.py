"""The host's trainer with our loaders, evaluator, hooks and writers."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fastreid.engine import hooks
from fastreid.evaluation import inference_on_dataset
from fastreid.utils import comm
from fastreid.utils.events import EventWriter

from agreid_plugin.engine.checkpoints import tolerate_full_disk
from agreid_plugin.engine.checks import check_test_labels, check_training_labels
from agreid_plugin.engine.report import PRINTED
from agreid_plugin.evaluation import format_table, save_results
from agreid_plugin.evaluation.evaluation_sets import EvaluationSet, add_validation
from agreid_plugin.evaluation.results import FILE_NAME as RESULTS
from agreid_plugin.hosts.fastreid.config.checks import best_metric
from agreid_plugin.hosts.fastreid.config.loading import with_value
from agreid_plugin.hosts.fastreid.config.unread_keys import record_reads, refuse_unread
from agreid_plugin.hosts.fastreid.data import loaders
from agreid_plugin.hosts.fastreid.data.text import ImagesThenCaptions
from agreid_plugin.hosts.fastreid.engine import solver
from agreid_plugin.hosts.fastreid.engine.distributed import plain
from agreid_plugin.hosts.fastreid.engine.evaluator import MultiProtocolEvaluator, share_buffers, test_sets
from agreid_plugin.hosts.fastreid.engine.hooks import (
    EvalHook,
    ExpertUsage,
    LearningGuard,
    PeriodicCheckpointer,
    PeriodicWriter,
    RunCard,
    StepReporter,
    UnreadableImages,
    WeightAverage,
    has_experts,
)
from agreid_plugin.hosts.fastreid.engine.loop import ResumableTrainer
from agreid_plugin.hosts.fastreid.engine.writers import JSONWriter, ProgressWriter, TensorboardWriter
from agreid_plugin.hosts.fastreid.models.base import build_model, compile_network, get_method_class
from agreid_plugin.inference.weights import load_weights

_logger = logging.getLogger("fastreid.train")


class Trainer(ResumableTrainer):
    """The host's trainer whose inputs are checked before the first step and whose run can be watched."""

    config_file = ""
    """Where the configuration was read, for the run card."""
    _began = False

    def __init__(self, cfg):
        cfg = record_reads(cfg)
        self.test_sets = [add_validation(test_set) for test_set in test_sets(cfg)]
        super().__init__(cfg)
        self.warmup_iters = solver.warmup_iterations(cfg, self.iters_per_epoch)
        note = solver.warmup_note(cfg, self.iters_per_epoch)
        if note:
            _logger.info(note)
        method = plain(self.model)
        check_training_labels(method, loaders.list_labeled_images(self._trainer.data_loader.dataset.img_items))
        for test_set in self.test_sets:
            check_test_labels(method, test_set, "MODEL.VIEW")
        if cfg.SOLVER.AMP.ENABLED and cfg.SOLVER.AMP.ON_CPU:
            self._trainer.enabled = True
        refuse_unread(self.cfg)

    @classmethod
    def build_train_loader(cls, cfg):
        """Build the training loader."""
        return loaders.build_train_loader(cfg)

    @classmethod
    def build_model(cls, cfg):
        """Build the model and log it."""
        model = build_model(cfg)
        solver.check_frozen_layers(cfg, model)
        compile_network(cfg, model)
        _logger.info("Model:\n%s", model)
        return model

    @classmethod
    def build_optimizer(cls, cfg, model):
        """Build the optimizer, with what the host's keys cannot say of it."""
        optimizer, wrapper = super().build_optimizer(cfg, model)
        solver.adjust(cfg, model, optimizer)
        return optimizer, wrapper

    @classmethod
    def build_lr_scheduler(cls, cfg, optimizer, iters_per_epoch):
        """Build the schedule, its warm-up counted in epochs where `SOLVER.WARMUP_EPOCHS` says so."""
        cfg = with_value(cfg, "SOLVER.WARMUP_ITERS", solver.warmup_iterations(cfg, iters_per_epoch))
        if cfg.SOLVER.SCHED_STEP == "iteration":
            return solver.cosine_by_iteration(cfg, optimizer, iters_per_epoch)
        schedulers = super().build_lr_scheduler(cfg, optimizer, iters_per_epoch)
        if cfg.SOLVER.SCHED == "CosineAnnealingLR":  # in a run of one epoch it takes no step, but divides by T_max
            schedulers["lr_sched"].T_max = max(schedulers["lr_sched"].T_max, 1)
        return schedulers

    @classmethod
    def build_evaluator(cls, cfg, test_set: EvaluationSet):
        """Build the loader of a test set's images, and captions if they ask, and the evaluator of its protocols."""
        loader = loaders.build_test_loader(cfg, test_set.records, cfg.DATASETS.BAD_IMAGES)
        evaluator = MultiProtocolEvaluator(cfg, test_set)
        evaluator.bad_images = loader.dataset.bad_images
        if test_set.has_text:
            loader = ImagesThenCaptions(cfg, loader, test_set.records)
        return loader, evaluator

    @classmethod
    def test(cls, cfg, model, sets: Sequence[EvaluationSet] | None = None):
        """Evaluate every test set in one pass each, and keep the numbers in results.json.

        Args:
            cfg: the configuration.
            model: the model.
            sets: the test sets; read anew if they are not given.

        Returns:
            dataset -> {`A2G/mAP`: number, ...}, and under `metric` the number that selects the best model, if any may.
        """
        sets = [add_validation(test_set) for test_set in test_sets(cfg)] if sets is None else sets
        evaluators = cls.run_test_sets(cfg, model, sets)
        if not comm.is_main_process():
            return OrderedDict()
        metrics = [entry for evaluator in evaluators.values() for entry in evaluator.evaluation.metrics]
        with tolerate_full_disk(Path(cfg.OUTPUT_DIR) / RESULTS):
            save_results(Path(cfg.OUTPUT_DIR) / RESULTS, metrics)
        _logger.info("results in percent:\n%s", format_table(metrics), extra=PRINTED)
        results = OrderedDict((name, evaluator.numbers) for name, evaluator in evaluators.items())
        metric = best_metric(cfg, metrics, sets)
        if metric is not None:
            results["metric"] = metric
        return results

    @classmethod
    def run_test_sets(
        cls, cfg, model, sets: Sequence[EvaluationSet] | None = None
    ) -> dict[str, MultiProtocolEvaluator]:
        """Run the model over every test set; returns the evaluators, which hold features and numbers, by dataset."""
        evaluators = {}
        share_buffers(model)
        for test_set in test_sets(cfg) if sets is None else sets:
            loader, evaluator = cls.build_evaluator(cfg, test_set)
            evaluator.views = getattr(plain(model), "view_source", "")
            inference_on_dataset(model, loader, evaluator, flip_test=cfg.TEST.FLIP.ENABLED)
            evaluators[test_set.dataset.name] = evaluator
        return evaluators

    def build_hooks(self):
        """Put our hooks in the place of the host's that they mend."""
        ours = []
        for hook in super().build_hooks():
            if isinstance(hook, hooks.EvalHook):
                hook = EvalHook(self.cfg.TEST.EVAL_PERIOD, self._evaluate)
            elif isinstance(hook, hooks.PeriodicCheckpointer):
                continue
            elif isinstance(hook, hooks.PeriodicWriter):
                hook = PeriodicWriter(partial(self.open_writers, hook._writers), self.cfg.SOLVER.LOG_PERIOD)
            elif isinstance(hook, hooks.LRScheduler) and self.cfg.SOLVER.SCHED_STEP == "iteration":
                hook = solver.IterationScheduler(self.optimizer, self.scheduler)
            ours.append(hook)
        ours[1:1] = get_method_class(self.cfg).training_hooks(
            self.cfg
        )  # behind the timer, whose end an error would miss
        if self.cfg.SOLVER.SWA_EPOCH:
            average = WeightAverage(self.cfg.SOLVER.SWA_EPOCH)
            self.checkpointer.checkpointables["weight_average"] = average
            ours.insert(1, average)  # before what computes statistics, evaluates and saves
        if self.cfg.DATASETS.BAD_IMAGES == "skip":
            ours.insert(0, UnreadableImages(self._trainer.data_loader.dataset.bad_images))
        if has_experts(self.model):
            ours.insert(0, ExpertUsage())
        if self.cfg.SOLVER.LEARNING_GUARD:
            ours.insert(0, LearningGuard())
        if comm.is_main_process():
            ours.insert(0, RunCard())
        ours.insert(0, StepReporter())
        ours.append(PeriodicCheckpointer(self.cfg.SOLVER.CHECKPOINT_PERIOD))  # when all that it tells of is written
        return ours

    def _evaluate(self):
        self._last_eval_results = self.test(self.cfg, self.model, self.test_sets)
        return self._last_eval_results

    def build_writers(self):
        """Open none with the hooks: at that time nobody knows where a resumed run starts. See `open_writers`."""
        return []

    def open_writers(self, others: Sequence[EventWriter] = ()):
        """Open what shows and keeps the progress of the run, besides the writers of a subclass."""
        folder = Path(self.cfg.OUTPUT_DIR)
        return [
            ProgressWriter(self.start_iter, self.max_iter, self.iters_per_epoch, self.cfg.SOLVER.IMS_PER_BATCH),
            JSONWriter(folder / "metrics.json", self.start_iter),
            TensorboardWriter(folder, self.start_iter),
            *others,
        ]

    def resume_or_load(self, resume=True):
        """Continue the run in `OUTPUT_DIR` if asked and there is one, else load `MODEL.WEIGHTS`."""
        if not (resume and self.resume()) and self.cfg.MODEL.WEIGHTS:
            load_weights(plain(self.model), self.cfg.MODEL.WEIGHTS)

    def before_train(self):
        """Run the hooks' part."""
        super().before_train()
        self._began = True

    def after_train(self):
        """Run the hooks' part, unless an error kept some of them from beginning: theirs would hide it."""
        if self._began:
            super().after_train()

    def train(self):
        """Train from `start_epoch` on; returns the last evaluation's results."""
        if self.start_epoch >= self.max_epoch:
            _logger.info(
                "nothing left to train: epoch %d of %d is done; raise SOLVER.MAX_EPOCH to go on",
                self.start_epoch,
                self.max_epoch,
            )
            return None
        self.run()
        return getattr(self, "_last_eval_results", None)
