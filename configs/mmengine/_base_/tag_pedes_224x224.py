"""TAG-PEDES at 224x224, a pair for every caption."""

train_pipeline = [
    dict(type="agreid_plugin.ReadImage"),
    dict(type="agreid_plugin.Resize", size=(224, 224), interpolation="bilinear"),
    dict(type="agreid_plugin.AugmentationPool"),
    dict(type="agreid_plugin.Pack"),
]
test_pipeline = [
    dict(type="agreid_plugin.ReadImage"),
    dict(type="agreid_plugin.Resize", size=(224, 224)),
    dict(type="agreid_plugin.Pack"),
]
dataset = dict(type="agreid_plugin.ReIDDataset", name="TAG_PEDES")

# Batches of one process: with N processes divide both by N.
train_dataloader = dict(
    batch_size=320,
    num_workers=8,
    persistent_workers=False,
    collate_fn=dict(type="pseudo_collate"),
    drop_last=True,
    sampler=dict(type="DefaultSampler", shuffle=True),
    worker_init_fn=dict(type="agreid_plugin.seed_worker"),
    dataset=dict(**dataset, split="train", captions=dict(which="all", length=77), pipeline=train_pipeline),
)
val_dataloader = dict(
    batch_size=256,
    num_workers=8,
    persistent_workers=False,
    collate_fn=dict(type="pseudo_collate"),
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(**dataset, split="val", captions=dict(length=77), pipeline=test_pipeline),
)
test_dataloader = dict(
    batch_size=256,
    num_workers=8,
    persistent_workers=False,
    collate_fn=dict(type="pseudo_collate"),
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(**dataset, split="test", captions=dict(length=77), pipeline=test_pipeline),
)
val_evaluator = dict(type="agreid_plugin.MultiProtocolMetric", metric="cosine")
test_evaluator = val_evaluator
tta_pipeline = test_pipeline
