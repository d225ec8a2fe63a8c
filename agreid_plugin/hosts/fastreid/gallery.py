"""Features of images in files, whatever they show: made by a model of the host, once for each image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from fastreid.modeling.meta_arch import META_ARCH_REGISTRY
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset

from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.feature_cache import FeatureCache
from agreid_plugin.evaluation.search import Gallery
from agreid_plugin.evaluation.showing import printable
from agreid_plugin.hosts.fastreid.data import read_image
from agreid_plugin.hosts.fastreid.loader import DeviceLoader
from agreid_plugin.hosts.fastreid.tag_clip import TAGCLIP
from agreid_plugin.hosts.fastreid.transforms import build_transforms
from agreid_plugin.types import UNKNOWN

SHOWN = 5  # bad images spelled out in a line about many


def predicts_views(cfg) -> bool:
    """Tell whether the model of a configuration learned to tell the view of an image."""
    node = cfg.MODEL.TAG_CLIP
    ours = issubclass(META_ARCH_REGISTRY.get(cfg.MODEL.META_ARCHITECTURE), TAGCLIP)
    return ours and node.BLOCK == "hr_moe" and node.VIEW_LOSS


def extract(
    cfg, model: nn.Module, paths: Sequence[str], store: FeatureCache, skip_bad: bool, tell: Callable[[str], None]
) -> Gallery:
    """Return the features of images, made where `store` does not have them; what was made stays there in any case.

    Raises:
        InputError: an image cannot be read and is not to be skipped, or none can.
    """
    missing, bad = store.missing(paths), []
    try:
        for inputs in _loader(cfg, missing) if missing else ():
            bad += inputs["bad"]
            if bad and not skip_bad:
                raise InputError(f"{_listed(bad)}: replace or remove, or leave out with --skip-bad-images")
            if len(inputs["images"]):
                for path, *made in zip(inputs["img_paths"], *embed_images(cfg, model, inputs), strict=True):
                    store.put(path, *made)
    finally:
        store.save()
    if len(bad) == len(paths):
        raise InputError(f"{_listed(bad)}: no other image is in the gallery")
    if bad:
        tell(f"left out: {_listed(bad)}")
    return store.gallery(paths)


@torch.no_grad()
def embed_images(cfg, model: nn.Module, inputs: dict[str, Any]) -> tuple[np.ndarray, list[int]]:
    """Return the features of a batch's images, (B, D), as an evaluation makes them, and their views or `UNKNOWN`."""
    features, views = _features_and_views(cfg, model, inputs)
    if cfg.TEST.FLIP.ENABLED:
        mirrored = _features_and_views(cfg, model, {**inputs, "images": inputs["images"].flip(dims=[3])})[0]
        features = (features + mirrored) / 2
    return features.float().cpu().numpy(), views


def _features_and_views(cfg, model: nn.Module, inputs: dict[str, Any]) -> tuple[Tensor, list[int]]:
    if not predicts_views(cfg):
        return model(inputs), [UNKNOWN] * len(inputs["images"])
    outputs = model.infer(inputs)
    surely = torch.stack([one.logits.softmax(dim=1) for one in outputs.images.routed]).mean(dim=0)  # (B, V)
    return model.embed(outputs), surely.argmax(dim=1).tolist()


class _Pictures(Dataset):
    """Images to look at, or what is wrong with them."""

    def __init__(self, paths: Sequence[str], transform: Callable[[Image.Image], Tensor]):
        self._paths, self._transform = paths, transform

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, place: int) -> tuple[str, Tensor | None]:
        try:
            return self._paths[place], self._transform(read_image(self._paths[place]))
        except (InputError, Image.DecompressionBombError):
            return self._paths[place], None


def _collate(samples: Sequence[tuple[str, Tensor | None]]) -> dict[str, Any]:
    good = [(path, image) for path, image in samples if image is not None]
    images = torch.stack([image for _, image in good]) if good else torch.empty(0)
    return {
        "images": images,
        "img_paths": [path for path, _ in good],
        "bad": [path for path, image in samples if image is None],
    }


def _loader(cfg, paths: Sequence[str]) -> DeviceLoader:
    batch = cfg.TEST.IMS_PER_BATCH
    loader = DeviceLoader(
        0,
        dataset=_Pictures(paths, build_transforms(cfg, is_train=False)),
        batch_size=batch,
        num_workers=min(cfg.DATALOADER.NUM_WORKERS, -(-len(paths) // batch)),
        collate_fn=_collate,
        pin_memory=True,
    )
    loader.device, loader.progress = torch.device(cfg.MODEL.DEVICE), "extracting"
    return loader


def _listed(paths: Sequence[str]) -> str:
    names = ", ".join(printable(path) for path in paths[:SHOWN])
    more = f", ... ({len(paths)} in all)" if len(paths) > SHOWN else ""
    return f"{len(paths)} {'image' if len(paths) == 1 else 'images'} cannot be read: {names}{more}"
