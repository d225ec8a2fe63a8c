"""VDT with the small ViT of AG-Synth."""

_base_ = ["../../configs/mmengine/_base_/agsynth_vit.py"]

model = dict(
    type="agreid_plugin.VDT",
    backbone=dict(type="agreid_plugin.VDTBackbone"),
    view_weight=0.001,
)
work_dir = "logs/vdt-agsynth-mmengine"
