"""AG-Synth at 128x64 in CARGO's layout, made in place; other layouts write their name into the three loaders."""

train_pipeline = [
    dict(type="agreid_plugin.ReadImage"),
    dict(type="agreid_plugin.Resize", size=(128, 64)),
    dict(type="agreid_plugin.PadCrop", padding=4),
    dict(type="agreid_plugin.HorizontalFlip", prob=0.5),
    dict(type="agreid_plugin.Pack"),
]
test_pipeline = [
    dict(type="agreid_plugin.ReadImage"),
    dict(type="agreid_plugin.Resize", size=(128, 64)),
    dict(type="agreid_plugin.Pack"),
]
dataset = dict(
    type="agreid_plugin.ReIDDataset",
    name="CARGO",
    data_root="datasets/agsynth-128x64",
    agsynth=dict(ids=200, images_per_id=12, size=(128, 64)),
)

# Batches of one process: with N processes divide the batch of training, in both places, and of tests by N.
train_dataloader = dict(
    batch_size=32,
    num_workers=1,
    persistent_workers=False,
    collate_fn=dict(type="pseudo_collate"),
    drop_last=True,
    sampler=dict(type="agreid_plugin.ViewBalancedIdentitySampler", batch_size=32, per_identity=4),
    worker_init_fn=dict(type="agreid_plugin.seed_worker"),
    dataset=dict(**dataset, split="train", pipeline=train_pipeline),
)
val_dataloader = dict(
    batch_size=64,
    num_workers=1,
    persistent_workers=False,
    collate_fn=dict(type="pseudo_collate"),
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(**dataset, split="val", pipeline=test_pipeline),
)
test_dataloader = dict(
    batch_size=64,
    num_workers=1,
    persistent_workers=False,
    collate_fn=dict(type="pseudo_collate"),
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(**dataset, split="test", pipeline=test_pipeline),
)
val_evaluator = dict(type="agreid_plugin.MultiProtocolMetric", metric="cosine")
test_evaluator = val_evaluator
tta_pipeline = test_pipeline
