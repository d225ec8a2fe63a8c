"""A ViT in the arrays of Google's JAX code."""

import numpy as np

from agreid_plugin.nn.vit import VisionTransformer


def as_jax(vit: VisionTransformer) -> dict[str, np.ndarray]:
    """The arrays of Google's ViT with the weights of `vit`, and its classifier."""
    heads = vit.blocks[0].attn.heads
    state = {name: value.numpy() for name, value in vit.state_dict().items()}
    width, size = vit.width, vit.width // heads
    arrays = {
        "cls": state["cls_token"],
        "Transformer/posembed_input/pos_embedding": state["pos_embed"],
        "embedding/kernel": state["patch_embed.proj.weight"].transpose(2, 3, 1, 0),
        "embedding/bias": state["patch_embed.proj.bias"],
        "Transformer/encoder_norm/scale": state["norm.weight"],
        "Transformer/encoder_norm/bias": state["norm.bias"],
        "head/kernel": np.zeros((width, 5), dtype=np.float32),
        "head/bias": np.zeros(5, dtype=np.float32),
    }
    for number in range(vit.depth):
        ours, theirs = f"blocks.{number}", f"Transformer/encoderblock_{number}"
        for norm, name in (("norm1", "LayerNorm_0"), ("norm2", "LayerNorm_2")):
            arrays[f"{theirs}/{name}/scale"] = state[f"{ours}.{norm}.weight"]
            arrays[f"{theirs}/{name}/bias"] = state[f"{ours}.{norm}.bias"]
        attention = f"{theirs}/MultiHeadDotProductAttention_1"
        for place, part in enumerate(("query", "key", "value")):
            rows = slice(place * width, (place + 1) * width)
            arrays[f"{attention}/{part}/kernel"] = state[f"{ours}.attn.qkv.weight"][rows].T.reshape(width, heads, size)
            arrays[f"{attention}/{part}/bias"] = state[f"{ours}.attn.qkv.bias"][rows].reshape(heads, size)
        arrays[f"{attention}/out/kernel"] = state[f"{ours}.attn.proj.weight"].T.reshape(heads, size, width)
        arrays[f"{attention}/out/bias"] = state[f"{ours}.attn.proj.bias"]
        for layer, name in (("fc1", "Dense_0"), ("fc2", "Dense_1")):
            arrays[f"{theirs}/MlpBlock_3/{name}/kernel"] = state[f"{ours}.mlp.{layer}.weight"].T
            arrays[f"{theirs}/MlpBlock_3/{name}/bias"] = state[f"{ours}.mlp.{layer}.bias"]
    return arrays
