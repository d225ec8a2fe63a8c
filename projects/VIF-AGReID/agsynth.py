"""The small ViT on AG-Synth, which is made first if it is missing, with PLRM and VIAL."""

_base_ = ["../../configs/mmengine/_base_/agsynth_vit.py"]

model = dict(type="agreid_plugin.VIF", vial_weight=1.0, lambda_=0.5, beta=5.0, margin=0.5)
train_pipeline = [
    dict(type="agreid_plugin.ReadImage"),
    dict(type="agreid_plugin.Resize", size=(128, 64)),
    dict(type="agreid_plugin.HorizontalFlip", prob=0.5),
    dict(type="agreid_plugin.PadCrop", padding=4),
    dict(type="agreid_plugin.PLRM"),
    dict(type="agreid_plugin.Pack"),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
work_dir = "logs/vif-agsynth-mmengine"
