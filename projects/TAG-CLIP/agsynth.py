"""A small TAG-CLIP on AG-Synth's captions, 128x64, from scratch: minutes on two CPU cores."""

_base_ = ["../../configs/mmengine/_base_/agsynth_clip.py"]

model = dict(
    type="agreid_plugin.TAGCLIP",
    clip=dict(text_length=64),  # AG-Synth's captions have fewer tokens
    at=[2],
    tse_width=256,
    temperature=0.07,  # nothing has come to rest at 0.01 yet
    text_dropout=0.0,
    freeze_patches=False,
    ortho_weight=1.0,  # 100 is for a class token that CLIP has trained
)

train_dataloader = dict(
    sampler=dict(_delete_=True, type="DefaultSampler", shuffle=True),
    dataset=dict(name="TAG_PEDES", captions=dict(which="one", length=64)),
)
val_dataloader = dict(dataset=dict(name="TAG_PEDES", captions=dict(length=64)))
test_dataloader = dict(dataset=dict(name="TAG_PEDES", captions=dict(length=64)))

optim_wrapper = dict(
    optimizer=dict(betas=(0.9, 0.98)),
    paramwise_cfg=dict(_delete_=True, decay_vectors=False),
)
param_scheduler = dict(
    _delete_=True,
    type="agreid_plugin.WarmupCosineLR",
    convert_to_iter_based=True,
    every="iteration",
    warmup_iters=100,
    warmup_factor=0.1,
    eta_min_ratio=1e-5 / 1.5e-3,
)
train_cfg = dict(max_epochs=16, val_interval=16)

# AG-Synth's TAG-PEDES has no validation split: nothing may select a best model
default_hooks = dict(checkpoint=dict(save_best=None))
custom_hooks = [
    *_base_.custom_hooks,
    dict(type="agreid_plugin.SoftLabelRamp", epochs=1.0),
    dict(type="agreid_plugin.ExpertUsage"),
]
work_dir = "logs/tag-clip-agsynth-mmengine"
