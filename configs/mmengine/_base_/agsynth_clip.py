"""Small towers of CLIP's shape on AG-Synth, from scratch."""

_base_ = ["./agsynth_adamw_24e.py"]

model = dict(
    num_ids=100,
    clip=dict(
        name="ViT-B-16",
        image_size=(128, 64),
        stride=(12, 12),
        width=128,
        layers=4,
        heads=4,
        text_width=128,
        text_layers=2,
        text_heads=4,
        embed_dim=128,
    ),
    data_preprocessor=dict(type="agreid_plugin.ReIDPreprocessor", mean=[127.5] * 3, std=[127.5] * 3),
)
# mmengine's own, which has the same rules here, warns of every parameter that is frozen
optim_wrapper = dict(constructor="agreid_plugin.OptimWrapperConstructor")
