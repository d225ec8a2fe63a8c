"""What every run has: hooks, logs, a seed."""

default_scope = "agreid_plugin"
runner_type = "agreid_plugin.ReIDRunner"
custom_imports = dict(imports=["agreid_plugin"])

default_hooks = dict(
    timer=dict(type="IterTimerHook"),
    logger=dict(type="LoggerHook", interval=20),
    param_scheduler=dict(type="ParamSchedulerHook"),
    checkpoint=dict(type="CheckpointHook", interval=20, save_best="metric", rule="greater", max_keep_ckpts=3),
    sampler_seed=dict(type="DistSamplerSeedHook"),
)
custom_hooks = [
    dict(type="agreid_plugin.IdentityCheck"),
    dict(type="agreid_plugin.LearningGuard"),
    dict(type="agreid_plugin.RunCard"),
    dict(type="agreid_plugin.SyncBuffers"),
    dict(type="agreid_plugin.Results"),
    dict(type="agreid_plugin.ExactResume"),
]

env_cfg = dict(
    cudnn_benchmark=False,
    mp_cfg=dict(mp_start_method="fork", opencv_num_threads=0),
    dist_cfg=dict(backend="nccl"),
)
visualizer = dict(
    type="Visualizer",
    vis_backends=[dict(type="LocalVisBackend"), dict(type="TensorboardVisBackend")],
)
log_processor = dict(by_epoch=True)
log_level = "INFO"
randomness = dict(seed=0)
load_from = None
resume = False
tta_model = dict(type="agreid_plugin.FlipTTA")  # for tools/test.py --tta
