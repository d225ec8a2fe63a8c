"""Gradient cache: training on a large batch with the memory of a small one and the same gradients.

Losses that compare images with one another need the features of the full batch, but not the activations behind them. So
a chunk of images at a time is encoded, and only the result is kept. Heads and losses see the full batch, and their
gradient arrives at the kept results. Each chunk is then encoded once more, with the same random draws, and the gradient
goes on through it. Activations are in memory for one chunk at a time.

It all happens within `forward` and `backward`: loss scaling, autocast and DistributedDataParallel, which averages once
over the processes, need no change.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from agreid_plugin.errors import InputError
from agreid_plugin.types import Batch, ReIDMethod


class TwoStageMethod(ReIDMethod):
    """A method in two stages: `encode` treats each image by itself, `finish` sees the full batch.

    Layers that mix images, as batch norms, belong to the second stage.

    Attributes:
        chunk: images of a process that are encoded at once where there are gradients; 0 for all. See
            `encode_in_chunks` for its cost.
    """

    chunk: int = 0

    @abstractmethod
    def encode(self, batch: Batch) -> Any:
        """Return the encoding of each image or sentence: tensors whose first dimension is the image.

        They may be in dataclasses, tuples, lists and dictionaries.
        """

    @abstractmethod
    def finish(self, encoded: Any, batch: Batch) -> Any:
        """Return the outputs, a dataclass of named tensors, from the encoding of the full batch."""

    def forward(self, batch: Batch) -> Any:
        """Run both stages."""
        chunked = self.chunk and torch.is_grad_enabled()
        return self.finish(encode_in_chunks(self, batch, self.chunk) if chunked else self.encode(batch), batch)


def encode_in_chunks(method: TwoStageMethod, batch: Batch, chunk: int) -> Any:
    """Return `method.encode` of a batch, with a backward pass that needs the memory of `chunk` images.

    Its result for the full batch is kept until then. For TAG-CLIP with ViT-B/16 in half precision that is 0.3 MB a pair
    of image and sentence, nearly all of it tokens, where the activations are 122 MB. Every image is encoded twice, so
    that a step takes a third to a half longer.

    Gradients are those of the full batch up to rounding. There are as many random draws, but in another order.

    Args:
        method: the method. Its `encode` may draw from torch's generators only, and have no other state: it runs twice
            on the same images.
        batch: the batch. It may be shorter than a chunk, and need not be a multiple of it.
        chunk: images encoded at once.
    """
    if chunk < 1:
        raise InputError(f"chunk={chunk} should be 1 or more")
    counts = {name: len(value) for name, value in batch.present().items()}
    if len(set(counts.values())) > 1:
        raise InputError(f"a batch of {counts} cannot be cut into chunks: give it as many of each")
    if len(batch) <= chunk:
        return method.encode(batch)
    with _refuse_batch_norms(method, chunk, len(batch)):
        pieces = [_slice_batch(batch, start, chunk) for start in range(0, len(batch), chunk)]
        parts = [_encode_chunk(method, piece) for piece in pieces]
    return _map_tensors(partial(_join_chunks, [len(piece) for piece in pieces]), parts, "encode")


def _slice_batch(batch: Batch, start: int, chunk: int) -> Batch:
    return batch.with_(**{name: value[start : start + chunk] for name, value in batch.present().items()})


def _encode_chunk(method: TwoStageMethod, piece: Batch) -> Any:
    """Encode a chunk, and again in the backward pass."""
    tensors = [value for value in piece.present().values() if isinstance(value, Tensor)]
    with _recast_weights(tensors[0].device.type):
        # The tensors are given so that the generators of their devices are remembered.
        encoded = checkpoint(lambda *_: method.encode(piece), *tensors, use_reentrant=False)
    return _map_tensors(lambda values, _: _copy_slice(values[0]), [encoded], "encode")


def _recast_weights(device: str) -> torch.autocast:
    """Keep autocast as it is, but cast weights in every chunk: a shared copy would add up its gradients in half."""
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    return torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=False)


def _copy_slice(values: Tensor) -> Tensor:
    """Copy a tensor that is a slice of a larger one, which it would keep in memory."""
    return values.clone() if values.untyped_storage().nbytes() > values.nbytes else values


@contextmanager
def _refuse_batch_norms(method: nn.Module, chunk: int, count: int) -> Iterator[None]:
    """Refuse batch norms that would take the statistics of a chunk."""

    def refuse(name: str, norm: _BatchNorm, _: Any) -> None:
        if norm.training or norm.running_mean is None:
            raise InputError(
                f"{type(method).__name__}.encode runs the batch norm {name} on chunks of {chunk} of {count} images, "
                "which would change its statistics: run it in finish, or encode the whole batch (chunk 0)"
            )

    norms = [(name, module) for name, module in method.named_modules() if isinstance(module, _BatchNorm)]
    handles = [norm.register_forward_pre_hook(partial(refuse, name)) for name, norm in norms]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _join_chunks(counts: Sequence[int], parts: Sequence[Tensor], where: str) -> Tensor:
    """Join the chunks' tensors, by their first dimension."""
    for count, part in zip(counts, parts, strict=True):
        if part.shape[:1] != (count,):
            raise InputError(f"{where}={tuple(part.shape)} of a chunk should have its {count} images first")
        if part.shape[1:] != parts[0].shape[1:]:
            shapes = f"{tuple(parts[0].shape)} of one chunk and {tuple(part.shape)} of another"
            raise InputError(f"{where} is {shapes}: all but the first dimension should be the same")
    return torch.cat(list(parts))


def _map_tensors(function: Callable[[Sequence[Tensor], str], Tensor], trees: Sequence[Any], where: str) -> Any:
    """Return a tree like the given ones, each tensor made by `function` from theirs and from its name."""
    first, inside = trees[0], partial(_map_tensors, function)
    if any(type(tree) is not type(first) for tree in trees):
        raise _build_mismatch(where)
    if isinstance(first, Tensor):
        return function(trees, where)
    if is_dataclass(first) and not isinstance(first, type):
        names = [field.name for field in fields(first) if field.init]
        values = {name: inside([getattr(tree, name) for tree in trees], f"{where}.{name}") for name in names}
        return replace(first, **values)
    if isinstance(first, dict):
        return {name: inside([tree[name] for tree in trees], f"{where}[{name!r}]") for name in first}
    if isinstance(first, tuple | list):
        parts = [inside(each, f"{where}[{place}]") for place, each in enumerate(zip(*trees, strict=True))]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    if any(tree != first for tree in trees):
        raise _build_mismatch(where)
    return first


def _build_mismatch(where: str) -> InputError:
    return InputError(f"{where} is not the same in all chunks: return it by image, as a tensor")
