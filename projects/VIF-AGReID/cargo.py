"""VIF-AGReID: a plain ViT-B/16 with PLRM and VIAL; all else is VDT's settings, which the paper names as its own."""

_base_ = ["../../configs/mmengine/_base_/vit_sgd_120e.py"]

model = dict(
    type="agreid_plugin.VIF",
    backbone=dict(type="agreid_plugin.ViTBackbone", vit=dict(stride=(16, 16))),
    vial_weight=1.0,
    lambda_=0.5,
    beta=5.0,
    margin=0.5,
)
train_pipeline = [
    dict(type="agreid_plugin.ReadImage"),
    dict(type="agreid_plugin.Resize", size=(256, 128)),
    dict(type="agreid_plugin.HorizontalFlip", prob=0.5),
    dict(type="agreid_plugin.PadCrop", padding=10),
    dict(type="agreid_plugin.PLRM"),
    dict(type="agreid_plugin.RandomErasing", prob=0.5, value=[123.675, 116.28, 103.53]),
    dict(type="agreid_plugin.Pack"),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
work_dir = "logs/vif-cargo-mmengine"
