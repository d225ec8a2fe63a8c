"""Tiny models of all methods as configurations and checkpoints of mmengine, for exports."""

from pathlib import Path

import small_mmengine
import torch

CONFIG = """
model = {model}
pipeline = [
    dict(type="agreid_plugin.ReadImage"),
    dict(type="agreid_plugin.Resize", size=(32, 16), interpolation={interpolation!r}),
    dict(type="agreid_plugin.Pack"),
]
test_dataloader = dict(
    batch_size=7, dataset=dict(type="agreid_plugin.ReIDDataset", name="CARGO", split="test", pipeline=pipeline)
)
"""


@torch.no_grad()
def make_model(folder: Path, name: str, interpolation: str = "bicubic", **changes) -> tuple[Path, Path]:
    """Write a configuration and random weights, none of them 0, so that every part of the model counts."""
    described = {**small_mmengine.CONFIGS[name], "num_ids": small_mmengine.IDENTITIES, **changes}
    config, weights = folder / f"{name}.py", folder / f"{name}.pth"
    config.write_text(CONFIG.format(model=described, interpolation=interpolation))
    model = small_mmengine.model(name, **changes)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape) * 0.05)
    torch.save({"state_dict": model.state_dict()}, weights)
    return config, weights
