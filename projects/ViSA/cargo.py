"""ViSA as in the paper: 64 identities x 4 images. Stride and K, which it does not print, are the released ones."""

_base_ = ["../../configs/mmengine/_base_/vit_sgd_120e.py"]

model = dict(
    type="agreid_plugin.ViSA",
    backbone=dict(
        type="agreid_plugin.ViSABackbone",
        vit=dict(stride=(12, 12)),
        variant="paper",
        experts=8,
        top_k=2,
        tokens=16,
        neighbors=64,
    ),
    objectives=dict(cls=dict(over_nonzero=False)),
    variant="paper",
    view="given",
    view_weight=1.0,
)
train_dataloader = dict(batch_size=256, sampler=dict(batch_size=256))
custom_hooks = [*_base_.custom_hooks, dict(type="agreid_plugin.ExpertUsage")]
work_dir = "logs/visa-cargo-mmengine"
