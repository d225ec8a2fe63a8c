"""`DefaultTrainer`, `default_setup` and loaders of fast-reid for configurations that ask for parts of this package.

`tools/train_net.py` and scripts like it use these names of the host; `compat/tools.py` puts what is here behind them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any

from fastreid.config import CfgNode, get_cfg
from fastreid.engine import DefaultTrainer
from fastreid.modeling.meta_arch import META_ARCH_REGISTRY
from fastreid.utils import comm
from fastreid.utils.env import seed_all_rng

from agreid_plugin.data.workers import name_worker_crashes
from agreid_plugin.engine.checks import check_test_labels, check_writable, claim_output
from agreid_plugin.engine.run import Request, Run
from agreid_plugin.engine.run_card import evaluation_card
from agreid_plugin.engine.signals import Interruption
from agreid_plugin.errors import InputError, MissingInputError
from agreid_plugin.hosts.fastreid import host
from agreid_plugin.hosts.fastreid.config.loading import describe_keys, import_all, resolve_imports, with_value
from agreid_plugin.hosts.fastreid.config.unread_keys import peek
from agreid_plugin.hosts.fastreid.data import loaders
from agreid_plugin.hosts.fastreid.data.datasets import get_source
from agreid_plugin.hosts.fastreid.engine.distributed import plain
from agreid_plugin.hosts.fastreid.engine.evaluator import test_sets
from agreid_plugin.hosts.fastreid.engine.hooks import card_facts
from agreid_plugin.hosts.fastreid.engine.trainer import Trainer
from agreid_plugin.hosts.fastreid.models.base import HostMethod, build_for_inference
from agreid_plugin.inference.weights import require_loaded, require_predictor

READ_BY_ALL = ("MODEL.", "SEED", "CUSTOM_IMPORTS")
"""Keys of ours that are read whoever trains."""


def find_reason(cfg: Any) -> str:
    """Return what of a configuration only the trainer and the loaders of this package do, empty if there is nothing.

    That is a key that is not at its default, but for `READ_BY_ALL`, or a method, a sampler or a dataset of ours.
    """
    return next(_list_reasons(cfg), "") if isinstance(cfg, CfgNode) and "MODEL" in cfg else ""


def _list_reasons(cfg: Any) -> Iterator[str]:
    defaults = get_cfg()
    for key in describe_keys():
        with suppress(KeyError):  # it was declared after the configuration was made
            if not key.startswith(READ_BY_ALL) and peek(cfg, key) != peek(defaults, key):
                yield key
    architecture = META_ARCH_REGISTRY._obj_map.get(cfg.MODEL.META_ARCHITECTURE)
    if isinstance(architecture, type) and issubclass(architecture, HostMethod):
        yield f"MODEL.META_ARCHITECTURE {cfg.MODEL.META_ARCHITECTURE}"
    if cfg.DATALOADER.SAMPLER_TRAIN in loaders.OUR_SAMPLERS:
        yield f"DATALOADER.SAMPLER_TRAIN {cfg.DATALOADER.SAMPLER_TRAIN}"
    yield from (
        f"DATASETS.{key} {name}" for key in ("NAMES", "TESTS") for name in cfg.DATASETS[key] if get_source(name)
    )


def complete(cfg, request: Request):
    """Return a configuration as the command hands it to a trainer: checked, with its datasets, attributes and seed.

    All processes have to ask; the main one makes AG-Synth where it is missing.
    """
    import_all(resolve_imports(cfg.CUSTOM_IMPORTS, Path(), "CUSTOM_IMPORTS"))
    if request.eval_only:
        cfg = with_value(cfg, "MODEL.BACKBONE.PRETRAIN", False)  # the checkpoint has it all
    run, processes = Run(request, cfg, Path(cfg.OUTPUT_DIR)), comm.get_world_size()
    _in_main_process(host.check, run, processes)
    _in_main_process(host.make_datasets, run, processes)
    return host.with_seed(host.resolve_files(cfg), request.resume)


def _in_main_process(function: Callable[..., object], *arguments: Any) -> None:
    """Call a function in the main process, and raise what it refuses in all of them."""
    error = None
    if comm.is_main_process():
        try:
            function(*arguments)
        except InputError as found:
            error = found
    for each in filter(None, comm.all_gather(error)):
        raise each


def set_up(cfg, args: Any) -> None:
    """Complete a configuration in place, before the host's `default_setup` writes it down.

    An evaluation goes into the folder `eval` of the run, as the command's does.

    Raises:
        InputError: the configuration is wrong, the folder has a run that is not to be resumed, or there are no weights
            to evaluate.
    """
    request = Request(
        getattr(args, "config_file", ""),
        resume=getattr(args, "resume", False),
        eval_only=getattr(args, "eval_only", False),
    )
    ScriptTrainer.request = request
    if request.eval_only:
        if not os.path.isfile(cfg.MODEL.WEIGHTS):
            raise MissingInputError(f"--eval-only: MODEL.WEIGHTS {cfg.MODEL.WEIGHTS!r} does not exist")
        replace_values(cfg, with_value(cfg, "OUTPUT_DIR", str(Path(cfg.OUTPUT_DIR) / "eval")))
    else:
        _in_main_process(claim_output, Path(cfg.OUTPUT_DIR), request.resume)
    replace_values(cfg, complete(cfg, request))


def replace_values(cfg: CfgNode, found: CfgNode) -> None:
    """Give a configuration, frozen or not, the values of another."""
    dict.update(cfg, found)


class ScriptTrainer(Trainer):
    """Our trainer in the place of a script's `DefaultTrainer`: it completes and seeds its configuration by itself."""

    request = Request("")
    """What the script was asked for."""

    def __init__(self, cfg):
        cfg = complete(cfg, self.request)
        _in_main_process(check_writable, Path(cfg.OUTPUT_DIR))
        seed_all_rng(cfg.SEED + comm.get_rank())
        super().__init__(cfg)
        self.config_file = self.request.config_file

    @classmethod
    def build_model(cls, cfg):
        """Build the model, also one to evaluate, of which the number of classes is not known."""
        return super().build_model(cfg) if cfg.MODEL.HEADS.NUM_CLASSES else build_for_inference(cfg)

    @classmethod
    def build_evaluator(cls, cfg, dataset_name, output_dir=None):  # noqa: ARG003 - the host's signature
        """Build loader and evaluator of a test set, or of what a name of `DATASETS.TESTS` stands for."""
        if isinstance(dataset_name, str):
            (dataset_name,) = test_sets(with_value(cfg, "DATASETS.TESTS", (dataset_name,)))
        return super().build_evaluator(cfg, dataset_name)

    @classmethod
    def test(cls, cfg, model, sets=None):
        """Evaluate by all protocols, or in the host's loop where a script has an evaluator of its own."""
        if _is_replaced(cls, "build_evaluator"):
            return DefaultTrainer.test.__func__.__wrapped__(cls, cfg, model)
        if sets is not None:
            return super().test(cfg, model, sets)
        sets = test_sets(cfg)
        for test_set in sets:
            check_test_labels(plain(model), test_set, host.VIEW_KEY)
        if not cls.request.eval_only:  # the folder is that of a training
            return super().test(cfg, model)
        left_out = require_loaded(plain(model), cfg.MODEL.WEIGHTS)
        require_predictor(plain(model), left_out, host.VIEW_KEY, cfg.MODEL.WEIGHTS)
        with cls._card(cfg, sets) if comm.is_main_process() else nullcontext():
            results = super().test(cfg, model, sets)
        host.verify(cfg, results)
        return results

    @classmethod
    def _card(cls, cfg, sets):
        return evaluation_card(cfg.OUTPUT_DIR, cls.request, sets, cfg.MODEL.WEIGHTS, **card_facts(cfg))

    def train(self):
        """Train; a signal has the step under way finished and saved."""
        with Interruption() as self.interruption, name_worker_crashes():
            results = super().train()
        host.verify(self.cfg, results)
        return results

    def _evaluate(self):
        if _is_replaced(type(self), "test"):
            self._last_eval_results = self.test(self.cfg, self.model)
            return self._last_eval_results
        return super()._evaluate()


def _is_replaced(kind: type[ScriptTrainer], name: str) -> bool:
    """Return whether a subclass has a class method of its own."""
    return getattr(kind, name).__func__ is not vars(ScriptTrainer)[name].__func__


@cache
def find_trainer(kind: type[DefaultTrainer]) -> type[ScriptTrainer]:
    """Return the class that serves configurations of ours for `DefaultTrainer` or a script's subclass of it.

    What the subclass has of its own stays in force, and `super()` in it finds our methods.

    Raises:
        InputError: it has loaders of test images, which hold one query and gallery for all protocols.
    """
    if kind is DefaultTrainer:
        return ScriptTrainer
    if kind.build_test_loader.__func__ is not DefaultTrainer.build_test_loader.__func__:
        raise InputError(
            f"{kind.__name__}.build_test_loader is not asked with keys or datasets of agreid_plugin, whose test sets "
            "have many protocols: override build_evaluator, which returns a loader and an evaluator"
        )
    return type(kind.__name__, (kind, ScriptTrainer), {"__module__": kind.__module__})


def build_train_loader(cfg, combineall: bool = False, **others: Any):
    """Build our training loader where the host's `build_reid_train_loader` is asked for one."""
    _refuse_others("build_reid_train_loader", cfg, others)
    return loaders.build_train_loader(with_value(cfg, "DATASETS.COMBINEALL", combineall or cfg.DATASETS.COMBINEALL))


def build_test_loader(cfg, dataset_name: str, **others: Any):
    """Build our loader of a query and a gallery where the host's `build_reid_test_loader` is asked for one."""
    _refuse_others("build_reid_test_loader", cfg, others)
    return loaders.build_query_gallery_loader(cfg, dataset_name)


def _refuse_others(function: str, cfg, others: dict[str, Any]) -> None:
    if others:
        raise InputError(
            f"{function} takes no {', '.join(others)} with {find_reason(cfg)}, which it would pass over: leave them out"
        )
