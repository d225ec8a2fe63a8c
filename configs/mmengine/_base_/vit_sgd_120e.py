"""What VDT, ViSA and VIF-AGReID train with on the real datasets: ViT-B/16 from ImageNet, SGD, 120 epochs, AMP."""

_base_ = ["./cargo_256x128.py", "./runtime.py"]

model = dict(
    num_ids=2500,
    backbone=dict(
        vit=dict(
            size="base",
            image_size=(256, 128),
            drop_path=0.1,
            pretrained="pretrained/jx_vit_base_p16_224-80ecf9dd.pth",
        ),
    ),
    head=dict(type="agreid_plugin.BNNeck"),
    objectives=dict(
        cls=dict(type="agreid_plugin.IdentityLoss", over_nonzero=True),
        triplet=dict(type="agreid_plugin.TripletLoss", margin=0.0),
    ),
    data_preprocessor=dict(type="agreid_plugin.ReIDPreprocessor", mean=[127.5] * 3, std=[127.5] * 3),
)

optim_wrapper = dict(
    type="agreid_plugin.AmpOptimWrapper",
    optimizer=dict(type="SGD", lr=8e-3, momentum=0.9, weight_decay=1e-4),
    paramwise_cfg=dict(norm_decay_mult=5.0, bias_decay_mult=5.0),
    clip_grad=dict(type="each", max_norm=5.0),
)
param_scheduler = dict(
    type="agreid_plugin.WarmupCosineLR",
    convert_to_iter_based=True,
    warmup_iters=2000,
    warmup_factor=0.01,
    eta_min=1.6e-6,
)
train_cfg = dict(by_epoch=True, max_epochs=120, val_interval=20)
val_cfg = dict()
test_cfg = dict()
env_cfg = dict(cudnn_benchmark=True)
