"""Recipes of mmengine's, made smaller yet: tiny images of AG-Synth, tiny networks, few epochs."""

from pathlib import Path

from conftest import ROOT
from mmengine.config import Config

SIZE = (32, 16)
MADE = {"ids": 8, "images_per_id": 8, "size": SIZE}  # 4 people to train on
TOWER = {"image_size": SIZE, "patch_size": 8, "stride": (8, 8), "width": 16, "heads": 2}
VIT = {**TOWER, "depth": 2}
CLIP = {**TOWER, "layers": 2, "text_width": 16, "text_layers": 1, "text_heads": 2, "embed_dim": 16}
SMALLER = {
    "VDT": {"backbone": {"vit": VIT}},
    "ViSA": {"backbone": {"vit": VIT, "experts": 2, "tokens": 2, "neighbors": 4}},
    "VIF-AGReID": {"backbone": {"vit": VIT}},
    "SVPR-ReID": {"clip": CLIP},
    "TAG-CLIP": {"clip": CLIP, "at": [1], "tse_width": 16},
}


def small(name: str, datasets: Path, work_dir: Path, recipe: str = "agsynth", epochs: int = 1) -> Config:
    """Return a recipe for tiny images of AG-Synth, few epochs, no weights and no other processes."""
    config = Config.fromfile(ROOT / "projects" / name / f"{recipe}.py")
    (config.model.clip if "clip" in config.model else config.model.backbone.vit).pop("pretrained", None)
    config.merge_from_dict({"model": {"num_ids": MADE["ids"] // 2, **SMALLER[name]}})
    for split in ("train", "val", "test"):
        loader = config[f"{split}_dataloader"]
        loader.num_workers, loader.batch_size = 0, 16
        loader.dataset.data_root, loader.dataset.agsynth = str(datasets), dict(MADE)
        for transform in loader.dataset.pipeline:
            if "size" in transform:
                transform.size = SIZE
    if "batch_size" in config.train_dataloader.sampler:
        config.train_dataloader.sampler.batch_size = 16
    config.train_cfg.max_epochs = config.train_cfg.val_interval = epochs
    if config.param_scheduler.get("warmup_iters"):
        config.param_scheduler.warmup_iters = 0
    config.default_hooks.logger.interval = 1
    config.work_dir, config.log_level = str(work_dir), "WARNING"
    return config
