"""Starts as mmpretrain's `tools/train.py` and `tools/test.py` make them of a configuration file."""

from copy import deepcopy
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.registry import RUNNERS
from mmengine.runner import Runner


def start(path: object, loaders: tuple[str, ...], loader_defaults: dict[str, Any], **changes: Any) -> Runner:
    """Build the runner of a configuration: `changes` are the tool's own options, `options` those of --cfg-options."""
    cfg = Config.fromfile(path)
    options = changes.pop("options", {})
    if changes.pop("tta", False):
        cfg.model = ConfigDict(**cfg.tta_model, module=cfg.model)
        cfg.test_dataloader.dataset.pipeline = cfg.tta_pipeline
    cfg.update({"launcher": "none", **changes})
    for name in loaders:
        cfg[name] = ConfigDict({**deepcopy(loader_defaults), **cfg[name]}) if cfg.get(name) else None
    cfg.merge_from_dict(options)
    return RUNNERS.build(cfg) if "runner_type" in cfg else Runner.from_cfg(cfg)


def train(path: object, **changes: Any) -> None:
    """Train as `tools/train.py CONFIG` does."""
    given = {"pin_memory": True, "persistent_workers": True, "collate_fn": {"type": "default_collate"}}
    start(path, ("train_dataloader", "val_dataloader", "test_dataloader"), given, **changes).train()


def test(path: object, checkpoint: object, **changes: Any) -> dict[str, float]:
    """Test as `tools/test.py CONFIG CHECKPOINT` does."""
    given = {"pin_memory": True, "collate_fn": {"type": "default_collate"}}
    return start(path, ("test_dataloader",), given, load_from=str(checkpoint), **changes).test()
