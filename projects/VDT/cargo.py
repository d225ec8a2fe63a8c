"""VDT as released: stride 16, 32 identities x 4 images."""

_base_ = ["../../configs/mmengine/_base_/vit_sgd_120e.py"]

model = dict(
    type="agreid_plugin.VDT",
    backbone=dict(type="agreid_plugin.VDTBackbone", vit=dict(stride=(16, 16))),
    view_weight=0.001,
)
work_dir = "logs/vdt-cargo-mmengine"
