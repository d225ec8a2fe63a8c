"""TAG-CLIP as released: ViT-B/16 of OpenAI at 224x224, AdamW 1e-4, 10 epochs, 320 pairs a batch in all, AMP."""

_base_ = ["../../configs/mmengine/_base_/tag_pedes_224x224.py", "../../configs/mmengine/_base_/runtime.py"]

model = dict(
    type="agreid_plugin.TAGCLIP",
    num_ids=4840,
    clip=dict(
        name="ViT-B-16",
        image_size=(224, 224),
        stride=(16, 16),
        text_length=77,
        quick_gelu="auto",
        pretrained="pretrained/ViT-B-16.pt",
    ),
    block="hr_moe",
    at=[6, 7, 8],
    experts=6,
    exclusive=1,
    top_k=5,
    id_weight=0.5,
    view_weight=1.0,
    ortho_weight=100.0,
    margin=0.001,
    soft_label=0.5,
    text_dropout=0.05,
    freeze_patches=True,
    data_preprocessor=dict(
        type="agreid_plugin.ReIDPreprocessor", mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375]
    ),
)

optim_wrapper = dict(
    type="agreid_plugin.AmpOptimWrapper",
    constructor="agreid_plugin.OptimWrapperConstructor",
    optimizer=dict(type="AdamW", lr=1e-4, betas=(0.9, 0.98), weight_decay=0.02),
    paramwise_cfg=dict(
        decay_vectors=False,
        lr_mult={"method.image_local": 10.0, "method.text_local": 10.0},  # TSE, which CLIP has not
    ),
)
param_scheduler = dict(
    type="agreid_plugin.WarmupCosineLR",
    convert_to_iter_based=True,
    every="iteration",
    warmup_epochs=1,
    warmup_factor=0.01,
    eta_min_ratio=5e-6 / 1e-4,
)
train_cfg = dict(by_epoch=True, max_epochs=10, val_interval=1)
val_cfg = dict()
test_cfg = dict()

# TAG-PEDES has no validation split: nothing may select a best model
default_hooks = dict(checkpoint=dict(interval=1, save_best=None))
custom_hooks = [
    *_base_.custom_hooks,
    dict(type="agreid_plugin.SoftLabelRamp", epochs=1.0),
    dict(type="agreid_plugin.ExpertUsage"),
]
env_cfg = dict(cudnn_benchmark=True)
work_dir = "logs/tag-clip-tag-pedes-mmengine"
