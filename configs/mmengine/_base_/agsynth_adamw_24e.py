"""What every method trains with on AG-Synth, on two CPU cores in minutes."""

_base_ = ["./agsynth_128x64.py", "./runtime.py"]

optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=1.5e-3, weight_decay=0.05),
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0),
)
param_scheduler = dict(
    type="agreid_plugin.WarmupCosineLR",
    convert_to_iter_based=True,
    warmup_iters=100,
    warmup_factor=0.1,
    eta_min=1e-5,
)
train_cfg = dict(by_epoch=True, max_epochs=24, val_interval=24)
val_cfg = dict()
test_cfg = dict()
default_hooks = dict(checkpoint=dict(interval=-1))
