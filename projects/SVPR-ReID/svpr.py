"""SVPR-ReID as in the paper: weights 0.25 (identity), 1 (triplet), 1 (view), 0.1 (attributes), three stages."""

_base_ = ["../../configs/mmengine/_base_/clip_adam_120e.py"]

model = dict(
    type="agreid_plugin.SVPR",
    clip=dict(text_length=100),
    variant="paper",
    view="given",
    stages=3,
    experts=4,
    view_weight=1.0,
)
