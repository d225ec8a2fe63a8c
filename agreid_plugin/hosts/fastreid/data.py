"""The host's datasets, samplers and loaders, put together so that bad data is named before or when it is met."""

from __future__ import annotations

import itertools
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from fastreid.data import build_reid_test_loader, build_reid_train_loader, samplers
from fastreid.data.common import CommDataset
from fastreid.data.datasets import DATASET_REGISTRY
from fastreid.data.datasets.bases import ImageDataset
from fastreid.data.transforms import build_transforms
from fastreid.utils import comm
from PIL import Image, ImageOps, UnidentifiedImageError
from torch.utils.data import Sampler

from agreid_plugin.errors import InputError, first_line, unknown

_logger = logging.getLogger("fastreid.data")


def dataset_root(cfg) -> str:
    """Return the folder that holds the datasets."""
    return cfg.DATASETS.ROOT or os.environ.get("FASTREID_DATASETS", "datasets")


def read_image(path: str) -> Image.Image:
    """Read an image as RGB, whatever its own mode, upright."""
    try:
        with Image.open(path) as image:
            return ImageOps.exif_transpose(image).convert("RGB")
    except FileNotFoundError:
        raise InputError(f"image {path} does not exist") from None
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise InputError(f"image {path} cannot be read ({error}): replace or remove it") from None


class ReIDDataset(CommDataset):
    """The host's dataset, reading every image as RGB and labels of any integer type."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        path, pid, camera = self.img_items[index][:3]
        image = read_image(path)
        return {
            "images": self.transform(image) if self.transform is not None else image,
            "targets": self.pid_dict[pid] if self.relabel else int(pid),
            "camids": self.cam_dict[camera] if self.relabel else int(camera),
            "img_paths": path,
        }


def load_dataset(name: str, root: str, parts: Sequence[str], **kwargs: Any) -> ImageDataset:
    """Build a registered dataset and read its `parts` (train, query, gallery), each sorted by path."""
    try:
        build = DATASET_REGISTRY.get(name)
    except KeyError:
        raise unknown("dataset", name, DATASET_REGISTRY._obj_map) from None
    try:
        with warnings.catch_warnings(record=True) as remarks:
            dataset = build(root=root, **kwargs)
            for part in parts:
                setattr(dataset, f"_{part}", sorted(getattr(dataset, part), key=lambda item: str(item[0])))
    except InputError:
        raise
    except (AssertionError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        # The host's own readers fail in these ways on a missing folder or an unexpected file name.
        raise InputError(
            f"dataset {name} cannot be read under {os.path.abspath(root)}: {first_line(error)}; "
            "set DATASETS.ROOT or FASTREID_DATASETS to the folder that holds it"
        ) from error
    for remark in remarks:
        _logger.warning("dataset %s: %s", name, remark.message)
    for part in parts:
        if not getattr(dataset, part):
            raise InputError(f"dataset {name} under {os.path.abspath(root)} has no {part} images")
    return dataset


def build_train_loader(cfg):
    """Build the training loader of `cfg`."""
    items: list[tuple] = []
    for name in cfg.DATASETS.NAMES:
        dataset = load_dataset(name, dataset_root(cfg), ["train"], combineall=cfg.DATASETS.COMBINEALL)
        if comm.is_main_process():
            dataset.show_train()
        items.extend(dataset.train)
    train_set = ReIDDataset(items, build_transforms(cfg, is_train=True), relabel=True)
    loader = build_reid_train_loader(
        train_set=train_set,
        sampler=build_sampler(cfg, items),
        total_batch_size=cfg.SOLVER.IMS_PER_BATCH,
        num_workers=cfg.DATALOADER.NUM_WORKERS,
    )
    return _on_model_device(loader, cfg)


def build_test_loader(cfg, dataset_name: str):
    """Build the loader of one test set: its queries, then its gallery. Returns it with the number of queries."""
    dataset = load_dataset(dataset_name, dataset_root(cfg), ["query", "gallery"])
    if comm.is_main_process():
        dataset.show_test()
    loader, num_query = build_reid_test_loader(
        test_set=ReIDDataset(dataset.query + dataset.gallery, build_transforms(cfg, is_train=False), relabel=False),
        test_batch_size=max(cfg.TEST.IMS_PER_BATCH, comm.get_world_size()),
        num_query=len(dataset.query),
        num_workers=cfg.DATALOADER.NUM_WORKERS,
    )
    return _on_model_device(loader, cfg), num_query


def _on_model_device(loader, cfg):
    if cfg.MODEL.DEVICE == "cpu":
        loader.device = torch.device("cpu")
    return loader


SAMPLERS = ("TrainingSampler", "NaiveIdentitySampler", "BalancedIdentitySampler", "ImbalancedDatasetSampler")


def build_sampler(cfg, items: Sequence[tuple]) -> Sampler:
    """Build the sampler named by `DATALOADER.SAMPLER_TRAIN`."""
    name = cfg.DATALOADER.SAMPLER_TRAIN
    _logger.info("training sampler: %s", name)
    if name == "TrainingSampler":
        return samplers.TrainingSampler(len(items))
    labels = [item[:3] for item in items]  # the host's samplers unpack exactly path, identity and camera
    if name == "ImbalancedDatasetSampler":
        return SeededImbalancedSampler(labels)
    per_process = cfg.SOLVER.IMS_PER_BATCH // comm.get_world_size()
    return getattr(samplers, name)(labels, per_process, cfg.DATALOADER.NUM_INSTANCE)


class SeededImbalancedSampler(samplers.ImbalancedDatasetSampler):
    """The host's sampler, its draws bound to the shared seed: the host's ranks each draw their own stream."""

    def _infinite_indices(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._seed)
        for _ in itertools.count():
            drawn = torch.multinomial(self.weights, self._size, replacement=True, generator=generator)
            yield from drawn.tolist()
