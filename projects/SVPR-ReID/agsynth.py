"""A small CLIP-shaped SVPR-ReID on AG-Synth in CP2108's layout, which has attributes: minutes on two CPU cores."""

_base_ = ["../../configs/mmengine/_base_/agsynth_clip.py"]

colors = ["Black", "White", "Gray", "Navy", "Blue", "Red", "Green", "Yellow", "Pink", "Purple", "Brown", "Beige"]
# those of CP2108's kind `appearance`: the model is built before AG-Synth, and cannot ask it
attributes = [
    ["Accessories", ["Nothing", "Backpack", "Shoulder_bag", "Handbag", "Shopping_bag", "Suitcase", "Unknown"]],
    ["Feet", ["Sneakers", "Dress_shoes", "Boots", "Sandals", "Unknown"]],
    ["Glasses", ["Nothing", "Clear", "Sun", "Unknown"]],
    ["Head Accessories", ["Nothing", "Cap", "Beanie", "Sun_hat", "Unknown"]],
    ["Holding Phone", ["No", "Yes", "Unknown"]],
    ["Lower Clothing", ["Trousers", "Jeans", "Leggings", "Shorts", "Skirt", "Dress", "Unknown"]],
    ["Lower Color", [*colors, "Unknown"]],
    ["Lower Style", ["Plain", "Striped", "Checked", "Dotted", "Unknown"]],
    ["Pose", ["Walking", "Standing", "Unknown"]],
    [
        "Upper Clothing",
        ["T-shirt", "Tank_top", "Shirt", "Sweater", "Hoodie", "Jacket", "Suit", "Coat", "Dress", "Unknown"],
    ],
    ["Upper Color", [*colors, "Unknown"]],
    ["Upper Style", ["Plain", "Striped", "Checked", "Dotted", "Logo", "Two-tone", "Unknown"]],
]
protocols = ["ALL", "A2G", "G2A", "AG-cross"]

model = dict(
    type="agreid_plugin.SVPR",
    clip=dict(
        text_length=100,
        freeze=["text"],  # as drawn: nothing is pretrained here, and sentences differ all the same
    ),
    attributes=attributes,
    head=dict(type="agreid_plugin.BNNeck"),
    objectives=dict(
        cls=dict(type="agreid_plugin.IdentityLoss"),
        triplet=dict(type="agreid_plugin.TripletLoss", margin=0.0),
    ),
    variant="paper",
    view="given",
    view_weight=1.0,
)
train_dataloader = dict(dataset=dict(name="CP2108", attributes=attributes))
val_dataloader = dict(dataset=dict(name="CP2108", protocols=protocols))
test_dataloader = dict(dataset=dict(name="CP2108", protocols=protocols))
custom_hooks = [*_base_.custom_hooks, dict(type="agreid_plugin.ExpertUsage")]
work_dir = "logs/svpr-agsynth-mmengine"
