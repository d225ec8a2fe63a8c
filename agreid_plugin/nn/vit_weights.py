"""Pretrained weights of a ViT: files of fast-reid, timm, DeiT and Google's JAX.

Shapes: T extra tokens, N patches, D width, H heads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import permutations
from math import isqrt
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from agreid_plugin.errors import InputError, first_line
from agreid_plugin.nn.checkpoints import read_arrays, read_tensors
from agreid_plugin.nn.vit import SIZES, VisionTransformer

MIN_FILLED = 0.9
"""Share of the model's tensors that a file must fill at least."""
PREFIXES = ("module.", "backbone.", "base.")
"""Prefixes that wrappers put before the names of a ViT; a file may have several in a row."""
MAX_NAMED = 6  # tensors in a message
ONLY_SQUARE = "only CLS and a square grid can be resized"


@dataclass(frozen=True)
class Fit:
    """How a file fitted a model; printed, it is one line for the log.

    Attributes:
        path: the file.
        loaded: how many of the model's tensors the file filled.
        wanted: how many the model has.
        missing: names of those that it did not fill.
        unused: names of the file's tensors without a place in the model.
    """

    path: str
    loaded: int
    wanted: int
    missing: tuple[str, ...]
    unused: tuple[str, ...]

    def __str__(self) -> str:
        left = f"; left as they were: {format_names(self.missing)}" if self.missing else ""
        unused = f"; not used: {format_names(self.unused)}" if self.unused else ""
        return f"{self.loaded} of {self.wanted} tensors from {self.path}{left}{unused}"


def load_pretrained(vit: VisionTransformer, path: str | Path) -> Fit:
    """Load a weight file into `vit` and return how it fitted.

    Reads `.pth` files of fast-reid, timm or DeiT, `.safetensors` of timm and `.npz` of Google's JAX ViTs. The position
    embedding is resized to the grid of `vit`.

    Raises:
        InputError: the file is missing, cannot be read or is for another model. `vit` is then as it was.
    """
    stored, wanted = _read(path), vit.state_dict()
    prefix = _find_prefix(stored, wanted)
    found = {name: stored[prefix + name] for name in wanted if prefix + name in stored}
    fitting = {name: value for name, value in found.items() if value.shape == wanted[name].shape}
    problem = _explain_other_model(found, stored, vit)
    if not problem and "pos_embed" in found.keys() - fitting.keys():
        fitting["pos_embed"] = resize_positions(found["pos_embed"], vit.grid, vit.extra_tokens)
    missing = tuple(name for name in wanted if name not in fitting)
    if problem or len(fitting) < MIN_FILLED * len(wanted):
        problem = problem or f"not {format_names(missing)}; it is for another model"
        raise InputError(f"{path} fits {len(fitting)} of the model's {len(wanted)} tensors: {problem}")
    vit.load_state_dict(fitting, strict=False)
    used = {prefix + name for name in fitting}
    return Fit(str(path), len(fitting), len(wanted), missing, tuple(name for name in stored if name not in used))


def resize_positions(stored: Tensor, grid: tuple[int, int], extra_tokens: int) -> Tensor:
    """Resize a file's position embedding, CLS and a grid row by row, to our grid: (1, 1+n, D) -> (1, 1+T+N, D)."""
    stored, source = stored.float(), _find_stored_grid(stored, grid)
    if source is None:
        raise InputError(f"position embedding {tuple(stored.shape)} cannot be resized to {grid}: {ONLY_SQUARE}")
    resized = resize_grid(stored[:, 1:], source, grid)
    # An extra token starts from the embedding of the file's top-left patch, row 1: the released VDT and ViSA copy as
    # many leading rows as they have special tokens, and the file has one.
    extra = stored[:, 1:2].expand(-1, extra_tokens, -1)  # (1, T, D)
    return torch.cat([stored[:, :1], extra, resized], dim=1)


def resize_grid(patches: Tensor, source: tuple[int, int], grid: tuple[int, int], mode: str = "bilinear") -> Tensor:
    """Resize values of patches, row by row, from one grid to another: (1, n, D) -> (1, N, D)."""
    image = patches.unflatten(1, source).permute(0, 3, 1, 2)  # (1, D, rows, cols)
    return F.interpolate(image, size=grid, mode=mode, align_corners=False).flatten(2).transpose(1, 2)


def _find_stored_grid(stored: Tensor, grid: tuple[int, int]) -> tuple[int, int] | None:
    """Return the grid of a file's position embedding, the model's or a square; None if it is neither."""
    patches = stored.shape[1] - 1 if stored.dim() == 3 and len(stored) == 1 else 0
    side = isqrt(patches)
    if patches == grid[0] * grid[1]:
        return grid
    return (side, side) if side > 0 and side * side == patches else None


def _read(path: str | Path) -> dict[str, Tensor]:
    """Return a file's tensors, with the names and layouts of timm."""
    if Path(path).suffix != ".npz":
        return read_tensors(path)
    try:
        return _convert_jax(read_arrays(path))
    except (RuntimeError, IndexError) as error:
        raise InputError(f"{path} holds arrays of other shapes than a ViT's: {first_line(error)}") from None


def _find_prefix(stored: Mapping[str, Tensor], wanted: Iterable[str]) -> str:
    """Return the chain of `PREFIXES` that most of the wanted names have, which may be empty."""
    chains = [chain for length in range(len(PREFIXES) + 1) for chain in permutations(PREFIXES, length)]
    return max(map("".join, chains), key=lambda prefix: sum(prefix + name in stored for name in wanted))


def _explain_other_model(found: Mapping[str, Tensor], stored: Iterable[str], vit: VisionTransformer) -> str:
    """Explain how a file is for another model; empty if it may be for this one."""
    blocks = {name.split(".")[1] for name in found if name.startswith("blocks.")}
    if not blocks:
        return f"it holds no ViT; its tensors: {format_names(stored)}"
    sized = [found[name] for name in ("cls_token", "norm.weight") if name in found and found[name].dim()]
    width = sized[0].shape[-1] if sized else vit.width
    if width != vit.width:
        return f"width {width}, this model has {vit.width}{_size_hint(width, vit.width)}"
    if len(blocks) < MIN_FILLED * vit.depth:
        return f"{len(blocks)} blocks, this model has {vit.depth}: set depth or take another file"
    return _explain_other_patches(found, vit)


def _explain_other_patches(found: Mapping[str, Tensor], vit: VisionTransformer) -> str:
    """Explain how a file is for other patches, by the convolution or their positions; empty if it is not."""
    ours = vit.patch_embed.proj.weight
    kernel = found.get("patch_embed.proj.weight", ours)
    if kernel.shape != ours.shape:
        shapes = f"patch kernel {tuple(kernel.shape)}, this model has {tuple(ours.shape)}"
        return f"{shapes}: set patch_size or take another file"
    positions = found.get("pos_embed", vit.pos_embed)
    if positions.shape != vit.pos_embed.shape and _find_stored_grid(positions, vit.grid) is None:
        shapes = f"position embedding {tuple(positions.shape)}, this model has {tuple(vit.pos_embed.shape)}"
        return f"{shapes}; {ONLY_SQUARE}: take the file of a plain ViT, not a distilled one"
    return ""


def _size_hint(stored: int, ours: int) -> str:
    """Name the sizes of two widths, if both have a name."""
    names = {size.width: name for name, size in SIZES.items()}
    return f": {names[stored]} instead of {names[ours]}?" if stored in names and ours in names else ""


def format_names(names: Iterable[str]) -> str:
    """Return names for a message, the first of them where there are many."""
    names = list(names)
    shown = names if len(names) <= MAX_NAMED else [*names[:MAX_NAMED], f"... ({len(names)} in all)"]
    return ", ".join(shown) or "none"


_JAX_MODULES = {"patch_embed.proj": ["embedding"], "norm": ["Transformer/encoder_norm"]}
_JAX_BLOCK_MODULES = {
    "norm1": ["LayerNorm_0"],
    "attn.qkv": [f"MultiHeadDotProductAttention_1/{part}" for part in ("query", "key", "value")],
    "attn.proj": ["MultiHeadDotProductAttention_1/out"],
    "norm2": ["LayerNorm_2"],
    "mlp.fc1": ["MlpBlock_3/Dense_0"],
    "mlp.fc2": ["MlpBlock_3/Dense_1"],
}


def _convert_jax(arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the arrays of Google's ViT in the names and layouts of timm; others keep their names."""
    left, named = dict(arrays), {}
    for ours, theirs in (("cls_token", "cls"), ("pos_embed", "Transformer/posembed_input/pos_embedding")):
        if theirs in left:
            named[ours] = left.pop(theirs)
    for module, sources in _map_jax_modules(arrays).items():
        for leaf, kind in (("kernel", "weight"), ("scale", "weight"), ("bias", "bias")):
            names = [f"{source}/{leaf}" for source in sources]
            if all(name in left for name in names):
                named[f"{module}.{kind}"] = torch.cat([_to_torch_layout(name, left.pop(name)) for name in names])
    return named | left


def _map_jax_modules(arrays: Iterable[str]) -> dict[str, list[str]]:
    """Map each of our modules to those of Google's ViT that are joined for it, in order."""
    folder = "Transformer/encoderblock_"
    numbers = {name.removeprefix(folder).split("/")[0] for name in arrays if name.startswith(folder)}
    return _JAX_MODULES | {
        f"blocks.{number}.{module}": [f"{folder}{number}/{source}" for source in sources]
        for number in numbers
        for module, sources in _JAX_BLOCK_MODULES.items()
    }


def _to_torch_layout(name: str, array: Tensor) -> Tensor:
    if not name.endswith("/kernel"):
        return array.flatten()  # a bias of queries is (H, D / H)
    if name == "embedding/kernel":
        return array.permute(3, 2, 0, 1)  # (rows, cols, 3, D) -> (D, 3, rows, cols)
    if name.endswith("/out/kernel"):
        return array.flatten(0, 1).T  # (H, D / H, D) -> (D, D)
    return array.flatten(1).T  # (D, H, D / H) -> (D, D), and (inputs, outputs) -> (outputs, inputs)
