"""A configuration of mmengine's as a file: VDT on AG-Synth, one epoch in a second."""

from pathlib import Path

CONFIG = """
custom_imports = dict(imports=["agreid_plugin"])
default_scope = "agreid_plugin"
randomness = dict(seed=0)
size = (32, 16)
images = [
    dict(type="agreid_plugin.ReadImage"),
    dict(type="agreid_plugin.Resize", size=size),
    dict(type="agreid_plugin.Pack"),
]
# Said in full, as mmpretrain's own tool has other defaults than mmengine.
loader = dict(num_workers=0, persistent_workers=False, collate_fn=dict(type="pseudo_collate"))
model = dict(
    type="agreid_plugin.VDT",
    num_ids=4,
    backbone=dict(
        type="agreid_plugin.VDTBackbone", vit=dict(image_size=size, patch_size=8, width=16, depth=2, heads=2)
    ),
)
train_dataloader = dict(
    **loader,
    batch_size=8,
    dataset=dict(type="agreid_plugin.ReIDDataset", name="CARGO", data_root={root!r}, pipeline=images),
    sampler=dict(type="agreid_plugin.ViewBalancedIdentitySampler", batch_size=8, per_identity=4),
)
test_dataloader = dict(
    **loader,
    batch_size=16,
    dataset=dict(type="agreid_plugin.ReIDDataset", name="CARGO", data_root={root!r}, split="test", pipeline=images),
    sampler=dict(type="DefaultSampler", shuffle=False),
)
test_evaluator = dict(type="agreid_plugin.MultiProtocolMetric")
test_cfg = dict()
train_cfg = dict(by_epoch=True, max_epochs=1)
optim_wrapper = dict(type="OptimWrapper", optimizer=dict(type="SGD", lr=0.05))
hooks = ("LearningGuard", "IdentityCheck", "RunCard", "Results", "ExactResume", "SyncBuffers")
custom_hooks = [dict(type=f"agreid_plugin.{{name}}") for name in hooks]
"""


def write_config(path: Path, root: Path, more: str = "") -> Path:
    """Write `CONFIG` for the datasets below `root`, and what is to be changed in it."""
    path.write_text(CONFIG.format(root=str(root)) + more)
    return path
