"""A small ViT on AG-Synth, for every method alike; what inherits from it says the model's type."""

_base_ = ["./agsynth_adamw_24e.py"]

model = dict(
    num_ids=100,
    backbone=dict(
        type="agreid_plugin.ViTBackbone",
        vit=dict(size="tiny", image_size=(128, 64), stride=(12, 12), width=128, depth=4, heads=4, drop_path=0.0),
    ),
    head=dict(type="agreid_plugin.BNNeck"),
    objectives=dict(
        cls=dict(type="agreid_plugin.IdentityLoss", over_nonzero=True),
        triplet=dict(type="agreid_plugin.TripletLoss", margin=0.0),
    ),
    data_preprocessor=dict(type="agreid_plugin.ReIDPreprocessor", mean=[127.5] * 3, std=[127.5] * 3),
)
work_dir = "logs/agsynth-vit-mmengine"
