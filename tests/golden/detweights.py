"""Weights and images that depend on names alone, with which the released models' outputs were recorded.

Our own generator, as it was run beside the released code; see README.md. What it draws must stay as it is to the bit.
"""

import re
import zlib

import numpy as np
import torch
from torch import Tensor

NORM = r"(^|\.)(norm\d*|norm_share|norm_view|bottleneck\.0|b1\.1)"
RULES = [  # searched in the key, kind, scale; the first hit counts
    (r"(^|\.)num_batches_tracked$", "zero", 0.0),
    (r"(^|\.)running_mean$", "normal", 0.1),
    (r"(^|\.)running_var$", "variance", 0.0),
    (r"(^|\.)view_token(_sky|_ground)?$", "normal", 0.5),
    (r"(^|\.)cls_token$", "normal", 0.2),
    (r"(^|\.)out_token$", "normal", 0.2),
    (r"(^|\.)prompt$", "normal", 0.2),
    (r"(^|\.)pos_embed$", "normal", 0.5),
    (r"(^|\.)image_pe$", "normal", 0.02),
    (rf"{NORM}\.weight$", "one_plus", 0.1),
    (rf"{NORM}\.bias$", "normal", 0.02),
    (r"_router\.gate\.weight$", "normal", 0.05),
    (r"_router\.gate\.bias$", "normal", 0.1),
    (r"\.patch_embed\.proj\.weight$", "normal", 0.05),
    (r"\.attn\.qkv\.weight$", "normal", 0.04),
    (r"\.gcn_weights$", "normal", 0.02),
    (r"(^|\.)(bias|weight)$", "normal", 0.02),
]


def tensor_for(key: str, shape: list[int]) -> Tensor:
    """Draw one tensor in float64, scale it, and round it to float32."""
    kind, scale = next((kind, scale) for pattern, kind, scale in RULES if re.search(pattern, key))
    if kind == "zero":
        return torch.zeros(shape, dtype=torch.int64)
    generator = _generator(key)
    if kind == "variance":
        values = 0.5 + generator.random(shape)
    else:
        values = generator.standard_normal(shape)
        values *= scale
        if kind == "one_plus":
            values += 1.0
    return torch.from_numpy(np.ascontiguousarray(values.astype(np.float32)))


def fill(shapes: dict[str, list[int]]) -> dict[str, Tensor]:
    """Draw a state dict."""
    return {key: tensor_for(key, shape) for key, shape in shapes.items()}


def images(count: int, rows: int, cols: int) -> Tensor:
    """Draw images of whole numbers 0 to 255, as float32; 2j and 2j + 1 are related, as if of one person."""
    drawn = np.empty((count, 3, rows, cols), dtype=np.float32)
    for number in range(count):
        pair, own = _generator(f"pair.{number // 2}"), _generator(f"image.{number}")
        cast = _whole(pair, 100, (3, 1, 1)) + 0.35 * _whole(own, 100, (3, 1, 1))
        blobs = _whole(pair, 90, (3, 4, 3)) + 0.6 * _whole(own, 90, (3, 4, 3))
        texture = _whole(own, 50, (3, 17, 9))
        noise = _whole(own, 12, (3, rows, cols))
        values = 128.0 + cast + _enlarged(blobs, rows, cols) + _enlarged(texture, rows, cols) + noise
        drawn[number] = np.clip(np.rint(values), 0, 255)
    return torch.from_numpy(drawn)


def _generator(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))


def _whole(generator: np.random.Generator, bound: int, size: tuple[int, ...]) -> np.ndarray:
    return generator.integers(-bound, bound + 1, size=size).astype(np.float64)


def _enlarged(grid: np.ndarray, rows: int, cols: int) -> np.ndarray:
    """Enlarge bilinearly, corner on corner, in plain float64 arithmetic."""
    y, x = (np.arange(side) * (have - 1) / (side - 1) for side, have in zip((rows, cols), grid.shape[1:], strict=True))
    top, left = (np.minimum(at.astype(np.int64), have - 2) for at, have in zip((y, x), grid.shape[1:], strict=True))
    down, right = (y - top)[None, :, None], (x - left)[None, None, :]
    upper = grid[:, top][:, :, left] * (1 - right) + grid[:, top][:, :, left + 1] * right
    lower = grid[:, top + 1][:, :, left] * (1 - right) + grid[:, top + 1][:, :, left + 1] * right
    return upper * (1 - down) + lower * down
