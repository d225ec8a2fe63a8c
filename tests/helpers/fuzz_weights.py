"""Files of weights, damaged: every format, through every reader of them."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fuzz_arrays import damaged_npz
from fuzz_cases import ODD, damaged
from fuzz_targets import Target
from hypothesis import strategies as st
from jax_vit import as_jax
from safetensors.torch import load as of_safetensors
from safetensors.torch import save as to_safetensors
from torch import nn

from agreid_plugin.inference.weights import load_weights
from agreid_plugin.nn.checkpoints import read_tensors
from agreid_plugin.nn.clip_build import build_clip
from agreid_plugin.nn.clip_weights import detect_quick_gelu, load_clip
from agreid_plugin.nn.vit import VisionTransformer
from agreid_plugin.nn.vit_weights import load_pretrained

torch.manual_seed(0)
VIT = VisionTransformer(image_size=(8, 8), patch_size=4, width=6, depth=1, heads=1)
CLIP = build_clip(
    image_size=(8, 8),
    patch_size=4,
    width=4,
    layers=1,
    heads=1,
    embed_dim=3,
    text_length=4,
    text_width=4,
    text_layers=1,
    text_heads=1,
)
CLIP_STATE = {
    **{f"visual.{name}": value for name, value in CLIP.image.visual.state_dict().items()},
    **{f"text.{name}": value for name, value in CLIP.text.text.state_dict().items()},
}
CLIP_STATE["text.token_embedding.weight"] = CLIP_STATE["text.token_embedding.weight"].half()  # the file is smaller


def odd_tensors() -> list[torch.Tensor]:
    """Tensors that are nobody's weights."""
    return [
        *(torch.zeros(0), torch.zeros(()), torch.ones(1, 5, 6), torch.ones(2, 3, 4, 5, 6), torch.ones(6).char()),
        *(torch.full((6,), torch.nan), torch.full((6,), torch.inf), torch.full((6,), 1e38), torch.ones(6).bool()),
        *(torch.ones(6, dtype=torch.complex64), torch.ones(6, dtype=torch.bfloat16), torch.ones(3, 2).to_sparse()),
        *(torch.zeros(1).expand(2**40), torch.zeros(1).expand(6), torch.ones(6, device="meta")),
        torch.arange(12.0)[::2],
    ]


@st.composite
def damaged_inside(draw: st.DrawFn, original: bytes) -> bytes:
    """A zip file that is whole, in which one of the files is damaged."""
    with zipfile.ZipFile(io.BytesIO(original)) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    pickles = [name for name in content if name.endswith(".pkl")] or list(content)
    name = draw(st.sampled_from(pickles) | st.sampled_from(list(content)))
    content[name] = draw(damaged(content[name]))
    return _zipped(content)


def _zipped(content: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in content.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return buffer.getvalue()


@st.composite
def changed_state(draw: st.DrawFn, content: Any) -> Any:
    """A checkpoint of which one part, at any depth, is missing, has another name or is something else."""
    odd = st.sampled_from(odd_tensors()) | st.sampled_from(ODD)
    if not isinstance(content, dict) or not content or draw(st.integers(0, 9)) == 0:
        return draw(odd)
    key = draw(st.sampled_from(list(content)))
    how = draw(st.sampled_from(["deeper", "deeper", "deeper", "remove", "rename", "add"]))
    copy = dict(content)
    if how == "deeper":
        copy[key] = draw(changed_state(content[key]))
    elif how == "remove":
        del copy[key]
    else:
        copy[draw(st.sampled_from([*ODD, "model", "state_dict"]).filter(_is_key))] = (
            copy.pop(key) if how == "rename" else draw(odd)
        )
    return copy


def _is_key(value: Any) -> bool:
    return not isinstance(value, list | dict)


def torch_bytes(content: Any, **options: Any) -> bytes:
    """Return what torch would write into a file."""
    buffer = io.BytesIO()
    torch.save(content, buffer, **options)
    return buffer.getvalue()


def damaged_torch(**options: Any) -> Callable[[bytes], st.SearchStrategy[bytes]]:
    """Return what damages a checkpoint: the file, a file inside of it, or what it says."""

    def damage(original: bytes) -> st.SearchStrategy[bytes]:
        content = torch.load(io.BytesIO(original), weights_only=False)
        said = changed_state(content).map(lambda found: torch_bytes(found, **options))
        inside = damaged_inside(original) if original.startswith(b"PK") else damaged(original)
        return damaged(original) | inside | said | said

    return damage


def _damaged_safetensors(original: bytes) -> st.SearchStrategy[bytes]:
    content = of_safetensors(original)
    fine = [tensor for tensor in odd_tensors() if not tensor.is_sparse and not tensor.is_meta and tensor.numel() < 999]
    odd = st.sampled_from([tensor.contiguous() for tensor in fine])
    said = st.builds(lambda name, value: to_safetensors({**content, name: value}), st.sampled_from(list(content)), odd)
    return damaged(original) | said


def _damaged_script(original: bytes) -> st.SearchStrategy[bytes]:
    return damaged(original) | damaged_inside(original) | damaged_inside(original)


def _file(name: str, write: Callable[[], bytes]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(write())
        return folder / name

    return make


def _scripted() -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))), buffer)
    return buffer.getvalue()


def _jax() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **as_jax(VIT))
    return buffer.getvalue()


def _checkpoint() -> dict[str, Any]:
    return {"model": VIT.state_dict(), "optimizer": {"state": {0: {"step": 1}}, "lr": 0.1}, "epoch": 3}


def _of_mmengine() -> bytes:
    from mmengine.logging import HistoryBuffer

    hub = {
        "log_scalars": {"loss": HistoryBuffer([1.0, 2.0], [1, 1])},
        "runtime_info": {"iter": 3, "rate": np.float64(0.1)},
    }
    return torch_bytes({"meta": {"epoch": 1, "seed": 0}, "state_dict": VIT.state_dict(), "message_hub": hub})


def _into(model: nn.Module) -> Callable[[Path], None]:
    """Load a file into a model as the commands do, which must be as good afterwards as before."""

    def read(file: Path) -> None:
        copy = deepcopy(model)
        load_weights(copy, file)
        for name, value in copy.state_dict().items():
            assert value.dtype == model.state_dict()[name].dtype
            assert not value.isnan().any()

    return read


def _read_vit(file: Path) -> None:
    load_pretrained(deepcopy(VIT), file)


def _read_clip(file: Path) -> None:
    detect_quick_gelu(file)
    load_clip(deepcopy(CLIP), file)


def _read_of_mmengine(file: Path) -> None:
    from agreid_plugin.hosts.mmengine.engine.checkpoint_reader import load_from_local

    assert isinstance(load_from_local(os.fspath(file), "cpu"), dict)
    _into(VIT)(file)


def _read_script(file: Path) -> None:
    read_tensors(file)
    _into(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))(file)


OLD = {"_use_new_zipfile_serialization": False}
WEIGHT_TARGETS = [
    Target("checkpoint", _file("a.pth", lambda: torch_bytes(_checkpoint())), _into(VIT), damaged_torch()),
    Target(
        "old checkpoint", _file("a.pth", lambda: torch_bytes(_checkpoint(), **OLD)), _into(VIT), damaged_torch(**OLD)
    ),
    Target("weights of a ViT", _file("a.pth", lambda: torch_bytes(VIT.state_dict())), _read_vit, damaged_torch()),
    Target(
        "safetensors", _file("a.safetensors", lambda: to_safetensors(VIT.state_dict())), _read_vit, _damaged_safetensors
    ),
    Target("weights of JAX", _file("a.npz", _jax), _read_vit, damaged_npz),
    Target("weights of a CLIP", _file("a.pt", lambda: torch_bytes(CLIP_STATE)), _read_clip, damaged_torch()),
    Target("TorchScript", _file("a.pt", _scripted), _read_script, _damaged_script),
    Target("checkpoint of mmengine", _file("a.pth", _of_mmengine), _read_of_mmengine, damaged_torch()),
]
