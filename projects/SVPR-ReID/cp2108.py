"""CP2108: all of its 22 attributes."""

_base_ = ["./svpr.py"]

data_root = "{{$FASTREID_DATASETS:datasets}}"
model = dict(
    num_ids=1442,
    clip=dict(text_length=160),  # 22 attributes make sentences of about 130 tokens
    attributes=dict(dataset="CP2108", data_root=data_root),
)
train_dataloader = dict(dataset=dict(name="CP2108", data_root=data_root, attributes=[]))
val_dataloader = dict(dataset=dict(name="CP2108", data_root=data_root))
test_dataloader = dict(dataset=dict(name="CP2108", data_root=data_root))
param_scheduler = dict(milestones=[31, 51])
custom_hooks = [*_base_.custom_hooks, dict(type="agreid_plugin.ExpertUsage")]
work_dir = "logs/svpr-cp2108-mmengine"
