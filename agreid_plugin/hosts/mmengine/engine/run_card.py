"""What a runner's configuration comes to, for its run card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmengine.config import Config
from mmengine.dist import get_world_size
from mmengine.runner import Runner

from agreid_plugin.engine.run_card import Card
from agreid_plugin.engine.run_inputs import tested_on, weight_files
from agreid_plugin.hosts.mmengine.compat import HOST_FIXES
from agreid_plugin.hosts.mmengine.config.loading import PRETRAINED, each_dict, type_name
from agreid_plugin.hosts.mmengine.engine.runner_utils import loops, metainfo, metrics_of


def training_card(runner: Runner, batch: Mapping[str, int]) -> Card:
    """Begin the card of a training run."""
    resumed = runner.iter > 0
    initial = None if resumed else runner.cfg.get("load_from")
    return Card(
        runner.work_dir,
        task="train",
        seed=runner.seed,
        resumed=resumed,
        config_file=runner.cfg.filename or "",
        batch=dict(batch),
        datasets=fingerprints(runner),
        weights=weight_files(initial=initial, **pretrained_files(runner.cfg)),
        **tested_on([metric.test_set for metric in metrics_of(loops(runner).get("val"))]),
        **common(runner.cfg),
    )


def common(cfg: Config) -> dict[str, Any]:
    """Return what the cards of training and evaluation are told alike."""
    return {
        "config": plain(cfg.to_dict()),
        "host": "mmengine",
        "processes": get_world_size(),
        "host_fixes": HOST_FIXES.applied(),
        "setup": setup(cfg),
    }


def setup(cfg: Config) -> dict[str, Any]:
    """Return what a configuration of either host tells of a run, by the same names."""
    model, optimizer = cfg.get("model") or {}, (cfg.get("optim_wrapper") or {}).get("optimizer") or {}
    tests = [cfg.get("test_dataloader"), cfg.get("val_dataloader")]
    sizes = [part["size"] for _, part in each_dict(tests) if type_name(part) == "Resize" and "size" in part]
    return {
        "architecture": type_name(model),
        "variant": model.get("variant") or (model.get("backbone") or {}).get("variant", ""),
        "input": plain(sizes[0]) if sizes else None,
        "epochs": (cfg.get("train_cfg") or {}).get("max_epochs"),
        "optimizer": type_name(optimizer) or None,
        "learning_rate": optimizer.get("lr"),
    }


def batch_of(runner: Runner) -> dict[str, int]:
    """Return how many images a step of the optimizer is made of, and of how many each process has its share."""
    loader = runner.train_dataloader
    per_process = loader.batch_size or getattr(loader.batch_sampler, "batch_size", 0)
    times = getattr(runner.optim_wrapper, "_accumulative_counts", 1)
    return {
        "per_process": per_process,
        "processes": get_world_size(),
        "accumulation": times,
        "global": per_process * get_world_size() * times,
    }


def fingerprints(runner: Runner) -> dict[str, str]:
    """Return what tells the copies of the run's datasets from others, by name."""
    abouts = [metainfo(loop.dataloader) for loop in loops(runner).values()]
    return {about["name"]: about["fingerprint"] for about in abouts if {"name", "fingerprint"} <= set(about)}


def pretrained_files(cfg: Config) -> dict[str, str]:
    """Return the files that parts of the model start from."""
    found = []
    for _, part in each_dict(cfg.get("model")):
        found.append(part.get("checkpoint") if type_name(part) == PRETRAINED else part.get("pretrained"))
    names = [name for name in dict.fromkeys(filter(None, found)) if isinstance(name, str)]
    return {"pretrained" if place == 0 else f"pretrained_{place + 1}": name for place, name in enumerate(names)}


def plain(value: Any) -> Any:
    """Return a configuration's value as JSON can hold it; what is no value is told by its name."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(entry) for entry in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
