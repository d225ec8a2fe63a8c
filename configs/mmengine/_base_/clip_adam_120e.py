"""What CLIP methods train with on the real datasets: OpenAI's ViT-B/16, Adam 5e-6, 120 epochs, 32 x 4 images, AMP."""

_base_ = ["./cargo_256x128.py", "./runtime.py"]

model = dict(
    num_ids=2500,
    clip=dict(
        name="ViT-B-16",
        image_size=(256, 128),
        stride=(16, 16),
        quick_gelu="auto",
        freeze=["text"],
        pretrained="pretrained/ViT-B-16.pt",
    ),
    head=dict(type="agreid_plugin.BNNeck"),
    objectives=dict(
        cls=dict(type="agreid_plugin.IdentityLoss", weight=0.25, smoothing=0.1, over_all=True),
        triplet=dict(type="agreid_plugin.TripletLoss", margin=0.0),
    ),
    data_preprocessor=dict(type="agreid_plugin.ReIDPreprocessor", mean=[127.5] * 3, std=[127.5] * 3),
)

train_pipeline = [
    dict(type="agreid_plugin.ReadImage"),
    dict(type="agreid_plugin.Resize", size=(256, 128)),
    dict(type="agreid_plugin.PadCrop", padding=10),
    dict(type="agreid_plugin.HorizontalFlip", prob=0.5),
    dict(type="agreid_plugin.RandomErasing", prob=0.5, value=[127.5] * 3),
    dict(type="agreid_plugin.Pack"),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))

optim_wrapper = dict(
    type="agreid_plugin.AmpOptimWrapper",
    constructor="agreid_plugin.OptimWrapperConstructor",
    optimizer=dict(type="Adam", lr=5e-6, weight_decay=1e-4),
    paramwise_cfg=dict(bias_lr_mult=2.0),
)
param_scheduler = dict(
    type="agreid_plugin.WarmupMultiStepLR",
    convert_to_iter_based=True,
    warmup_epochs=10,
    warmup_factor=0.1,
    milestones=[31, 51, 81],
    gamma=0.1,
)
train_cfg = dict(by_epoch=True, max_epochs=120, val_interval=20)
val_cfg = dict()
test_cfg = dict()
env_cfg = dict(cudnn_benchmark=True)
