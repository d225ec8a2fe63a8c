"""The run card of the host's runs: what a configuration comes to, and the hook that keeps it while training."""

from __future__ import annotations

import sys
from typing import Any

import yaml
from fastreid.engine import hooks
from fastreid.utils import comm

from agreid_plugin.engine.run_card import Card
from agreid_plugin.engine.run_inputs import tested_on, weight_files
from agreid_plugin.hosts.fastreid.compat import HOST_FIXES
from agreid_plugin.hosts.fastreid.data import loaders
from agreid_plugin.hosts.fastreid.models.base import method_of


class RunRecord(hooks.HookBase):
    """Writes run_card.json when training starts, and into it what the run costs after each epoch and at its end."""

    def before_train(self) -> None:
        """Begin the card."""
        cfg, processes = self.trainer.cfg, comm.get_world_size()
        pretrained = cfg.MODEL.BACKBONE.PRETRAIN_PATH if cfg.MODEL.BACKBONE.PRETRAIN else ""
        self._card = Card(
            cfg.OUTPUT_DIR,
            task="train",
            config_file=self.trainer.config_file,
            resumed=self.trainer.iter > 0,
            batch={
                "per_process": cfg.SOLVER.IMS_PER_BATCH // processes,
                "processes": processes,
                "accumulation": 1,
                "global": cfg.SOLVER.IMS_PER_BATCH,
            },
            datasets=loaders.fingerprints(cfg),
            weights=weight_files(initial=cfg.MODEL.WEIGHTS, pretrained=pretrained, **method_of(cfg).weight_files(cfg)),
            **tested_on(self.trainer.test_sets),
            **common(cfg),
        )

    def after_step(self) -> None:
        """Count a batch."""
        self._card.images += self.trainer.cfg.SOLVER.IMS_PER_BATCH

    def after_epoch(self) -> None:
        """Keep what the run has cost so far."""
        self._card.update()

    def after_train(self) -> None:
        """End the card; the host comes here with an error under way, too."""
        if hasattr(self, "_card"):
            self._card.end(sys.exc_info()[1])


def common(cfg) -> dict[str, Any]:
    """Return what the cards of training and evaluation are told alike."""
    return {
        "config": yaml.safe_load(cfg.dump()),
        "host": "fast-reid",
        "processes": comm.get_world_size(),
        "seed": cfg.SEED,
        "host_fixes": HOST_FIXES.applied(),
        "setup": setup(cfg),
    }


def setup(cfg) -> dict[str, Any]:
    """Return what a configuration of either host tells of a run, by the same names."""
    architecture = cfg.MODEL.META_ARCHITECTURE
    return {
        "architecture": architecture,
        "variant": getattr(getattr(cfg.MODEL, architecture.upper(), None), "VARIANT", ""),
        "input": list(cfg.INPUT.SIZE_TEST),
        "epochs": cfg.SOLVER.MAX_EPOCH,
        "optimizer": cfg.SOLVER.OPT,
        "learning_rate": cfg.SOLVER.BASE_LR,
    }
