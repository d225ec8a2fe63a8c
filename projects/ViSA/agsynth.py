"""A small ViSA on AG-Synth, which is made first if it is missing."""

_base_ = ["../../configs/mmengine/_base_/agsynth_vit.py"]

model = dict(
    type="agreid_plugin.ViSA",
    backbone=dict(
        type="agreid_plugin.ViSABackbone",
        variant="paper",
        experts=8,
        top_k=2,
        tokens=8,
        neighbors=16,
    ),
    objectives=dict(cls=dict(over_nonzero=False)),
    variant="paper",
    view="given",
    view_weight=1.0,
)
custom_hooks = [*_base_.custom_hooks, dict(type="agreid_plugin.ExpertUsage")]
work_dir = "logs/visa-agsynth-mmengine"
