"""CARGO at 256x128; other datasets write their name into the three loaders."""

train_pipeline = [
    dict(type="agreid_plugin.ReadImage"),
    dict(type="agreid_plugin.Resize", size=(256, 128)),
    dict(type="agreid_plugin.PadCrop", padding=10),
    dict(type="agreid_plugin.HorizontalFlip", prob=0.5),
    dict(type="agreid_plugin.RandomErasing", prob=0.5, value=[123.675, 116.28, 103.53]),
    dict(type="agreid_plugin.Pack"),
]
test_pipeline = [
    dict(type="agreid_plugin.ReadImage"),
    dict(type="agreid_plugin.Resize", size=(256, 128)),
    dict(type="agreid_plugin.Pack"),
]

# Batches of one process: with N processes divide the batch of training, in both places, and of tests by N.
train_dataloader = dict(
    batch_size=128,
    num_workers=8,
    persistent_workers=False,
    collate_fn=dict(type="pseudo_collate"),
    drop_last=True,
    sampler=dict(type="agreid_plugin.IdentitySampler", batch_size=128, per_identity=4),
    worker_init_fn=dict(type="agreid_plugin.seed_worker"),
    dataset=dict(type="agreid_plugin.ReIDDataset", name="CARGO", split="train", pipeline=train_pipeline),
)
val_dataloader = dict(
    batch_size=256,
    num_workers=8,
    persistent_workers=False,
    collate_fn=dict(type="pseudo_collate"),
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(type="agreid_plugin.ReIDDataset", name="CARGO", split="val", pipeline=test_pipeline),
)
test_dataloader = dict(
    batch_size=256,
    num_workers=8,
    persistent_workers=False,
    collate_fn=dict(type="pseudo_collate"),
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(type="agreid_plugin.ReIDDataset", name="CARGO", split="test", pipeline=test_pipeline),
)
val_evaluator = dict(type="agreid_plugin.MultiProtocolMetric", metric="cosine")
test_evaluator = val_evaluator
tta_pipeline = test_pipeline
