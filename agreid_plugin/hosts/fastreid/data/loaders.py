"""Loaders of training and test sets, with checks that name bad data."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from fastreid.data import samplers
from fastreid.data.common import CommDataset
from fastreid.data.datasets.bases import ImageDataset
from fastreid.utils import comm
from PIL import Image
from torch import Tensor
from torch.utils.data import BatchSampler, Sampler

from agreid_plugin.data.attributes import AttributeSchema
from agreid_plugin.data.bad_images import BadImages, Labels
from agreid_plugin.data.collate import Sample
from agreid_plugin.data.images import read_image
from agreid_plugin.data.samplers import EndlessViewBalancedSampler, SeededBatches, seeded_getitem
from agreid_plugin.engine.checks import LabeledImage
from agreid_plugin.engine.signals import ignore_signals_in_worker
from agreid_plugin.errors import InputError
from agreid_plugin.hosts.fastreid.data.attributes import get_training_schema
from agreid_plugin.hosts.fastreid.data.batches import DeviceLoader, host_collate
from agreid_plugin.hosts.fastreid.data.datasets import RecordDataset, RecordItem, get_source, read_dataset
from agreid_plugin.hosts.fastreid.data.text import select_captions
from agreid_plugin.hosts.fastreid.data.transforms import build_transforms
from agreid_plugin.types import UNKNOWN, Record, platform_label, view_label

_logger = logging.getLogger("fastreid.data")


class ReIDDataset(CommDataset):
    """The host's dataset, whose samples have all labels of a record.

    Images are read as RGB whatever their mode, and labels may be of any integer type. Items are the host's tuples or
    our `RecordItem`s; the former have no view and no attributes.

    Args:
        img_items: the images.
        transform: from a PIL image to a tensor.
        relabel: number identities and cameras from 0, for training.
        schema: the attributes to give with each image; None gives none, as at test time.
        tokenize: makes the tokens of a record's caption; None gives none.
        bad_images: policy for images that cannot be read, `error` or `skip`; at test time, where `relabel` is off, a
            replacement has the labels of the image that it replaces.
    """

    def __init__(
        self,
        img_items: Sequence[tuple],
        transform: Callable[[Image.Image], Tensor],
        relabel: bool,
        schema: AttributeSchema | None = None,
        tokenize: Callable[[Record | None], Tensor] | None = None,
        bad_images: str = "error",
    ):
        super().__init__(img_items, transform, relabel)
        self.schema, self.tokenize = schema, tokenize
        self.bad_images = BadImages(len(img_items), self._get_labels, bad_images, any_identity=not relabel)

    @seeded_getitem
    def __getitem__(self, index: int) -> Sample:
        image, place = self.bad_images.attempt(index, lambda place: (read_image(self.img_items[place][0]), place))
        item = self.img_items[place if self.relabel else index]
        path, pid, camera = item[:3]
        record = getattr(item, "record", None)
        return Sample(
            image=self.transform(image),
            pid=self.pid_dict[pid] if self.relabel else pid,
            camera=self.cam_dict[camera] if self.relabel else camera,
            view=get_view(item),
            platform=get_platform(item),
            attributes=self.schema.encode(record.attributes if record else {}) if self.schema else None,
            tokens=self.tokenize(record) if self.tokenize else None,
            path=path,
        )

    def _get_labels(self, index: int) -> Labels:
        item = self.img_items[index]
        return Labels(item[0], item[1], get_view(item))


def get_view(item: tuple) -> int:
    """Return the view of an item, `UNKNOWN` where it is not known."""
    return view_label(item.record.view) if isinstance(item, RecordItem) else UNKNOWN


def get_platform(item: tuple) -> int:
    """Return the platform of an item's camera, `UNKNOWN` where it is not known."""
    return platform_label(item.record.platform) if isinstance(item, RecordItem) else UNKNOWN


def list_labeled_images(items: Iterable[tuple]) -> list[LabeledImage]:
    """Return path, view and platform of each item."""
    return [LabeledImage(str(item[0]), get_view(item), get_platform(item)) for item in items]


def compute_fingerprints(cfg) -> dict[str, str]:
    """Return fingerprints of our datasets in `cfg`, by dataset."""
    names = (*cfg.DATASETS.NAMES, *cfg.DATASETS.TESTS)
    one_of_each = {get_source(name): name for name in names if get_source(name)}
    return {source: read_dataset(cfg, name).fingerprint for source, name in one_of_each.items()}


def read_training_items(cfg) -> tuple[list[tuple], list[ImageDataset]]:
    """Read the training images and their datasets."""
    datasets = [read_training_set(cfg, name) for name in cfg.DATASETS.NAMES]
    return [item for dataset in datasets for item in dataset.train], datasets


def read_training_set(cfg, name: str) -> ImageDataset:
    """Read a registered dataset to train on."""
    return read_dataset(cfg, name, ["train"], combineall=cfg.DATASETS.COMBINEALL)


def build_train_loader(cfg) -> DeviceLoader:
    """Build the training loader of `cfg`."""
    items, datasets = read_training_items(cfg)
    if comm.is_main_process():
        _log_datasets(dict(zip(cfg.DATASETS.NAMES, datasets, strict=True)))
    schema = get_training_schema(cfg, datasets)
    items, tokenize = select_captions(cfg, items, datasets)
    train_set = ReIDDataset(
        items,
        build_transforms(cfg, is_train=True),
        relabel=True,
        schema=schema,
        tokenize=tokenize,
        bad_images=cfg.DATASETS.BAD_IMAGES,
    )
    per_process = cfg.SOLVER.IMS_PER_BATCH // comm.get_world_size()
    seed = cfg.SEED if cfg.SEED >= 0 else comm.shared_random_seed()
    batches = SeededBatches(build_sampler(cfg, items), per_process, seed, comm.get_rank())
    return _build_loader(cfg, train_set, batches)


def _log_datasets(datasets: Mapping[str, ImageDataset]) -> None:
    for name, dataset in datasets.items():
        dataset.show_train()
        for note in dataset.records.notes if isinstance(dataset, RecordDataset) else ():
            _logger.info("%s: %s", name, note)


def build_test_loader(cfg, records: Sequence[Record], bad_images: str = "error") -> DeviceLoader:
    """Build a loader that shows every record once, to each process its share of them.

    With `bad_images="skip"` another image replaces one that cannot be read; the caller has to drop the results of the
    images that the dataset's `bad_images` names.
    """
    return _build_test_loader(
        cfg, [RecordItem(record.path, record.pid, record.camera, record) for record in records], bad_images
    )


def build_query_gallery_loader(cfg, name: str) -> tuple[DeviceLoader, int]:
    """Build the host's kind of test loader for a registered dataset: queries, then gallery, and the number of queries.

    A dataset of ours is under one protocol there, that of its name.
    """
    dataset = read_dataset(cfg, name, ["query", "gallery"])
    return _build_test_loader(cfg, [*dataset.query, *dataset.gallery]), len(dataset.query)


def _build_test_loader(cfg, items: Sequence[tuple], bad_images: str = "error") -> DeviceLoader:
    test_set = ReIDDataset(items, build_transforms(cfg, is_train=False), relabel=False, bad_images=bad_images)
    per_process = max(cfg.TEST.IMS_PER_BATCH // comm.get_world_size(), 1)
    batches = BatchSampler(samplers.InferenceSampler(len(test_set)), per_process, drop_last=False)
    return _build_loader(cfg, test_set, batches, progress="extracting")


def _build_loader(cfg, dataset: ReIDDataset, batches: Sampler[list[int]], progress: str = "") -> DeviceLoader:
    loader = DeviceLoader(
        comm.get_local_rank(),
        dataset=dataset,
        batch_sampler=batches,
        num_workers=cfg.DATALOADER.NUM_WORKERS,
        collate_fn=host_collate,
        pin_memory=True,
        generator=torch.Generator(),  # the seeds of workers mean nothing, and the run's generator is not touched
        worker_init_fn=ignore_signals_in_worker,
    )
    if cfg.MODEL.DEVICE == "cpu":
        loader.device = torch.device("cpu")
    loader.progress = progress if comm.is_main_process() else ""
    return loader


OUR_SAMPLERS = ("ViewBalancedIdentitySampler", "SetReWeightSampler")
"""Those that the host has not, or that wait forever there."""
SAMPLERS = (
    "TrainingSampler",
    "NaiveIdentitySampler",
    "BalancedIdentitySampler",
    "ImbalancedDatasetSampler",
    *OUR_SAMPLERS,
)


def build_sampler(cfg, items: Sequence[tuple]) -> Sampler:
    """Build the sampler named by `DATALOADER.SAMPLER_TRAIN`."""
    name, batch, per_identity = cfg.DATALOADER.SAMPLER_TRAIN, cfg.SOLVER.IMS_PER_BATCH, cfg.DATALOADER.NUM_INSTANCE
    _logger.info("training sampler: %s", name)
    if name == "TrainingSampler":
        return samplers.TrainingSampler(len(items))
    if name == "ViewBalancedIdentitySampler":
        return EndlessViewBalancedSampler(
            [item[1] for item in items],
            [get_view(item) for item in items],
            batch,
            per_identity,
            seed=comm.shared_random_seed(),
            rank=comm.get_rank(),
            world_size=comm.get_world_size(),
        )
    labels = [tuple(item[:3]) for item in items]  # the host's samplers unpack exactly path, identity and camera
    if name == "SetReWeightSampler":
        return SetReWeightSampler(labels, batch, per_identity, cfg.DATALOADER.SET_WEIGHT, comm.shared_random_seed())
    if name == "ImbalancedDatasetSampler":
        return SeededImbalancedSampler(labels)
    return getattr(samplers, name)(labels, batch // comm.get_world_size(), per_identity)


class SeededImbalancedSampler(samplers.ImbalancedDatasetSampler):
    """The host's sampler, its draws bound to the shared seed: the host's ranks each draw another stream."""

    def _infinite_indices(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._seed)
        for _ in itertools.count():
            drawn = torch.multinomial(self.weights, self._size, replacement=True, generator=generator)
            yield from drawn.tolist()


class SetReWeightSampler(Sampler[int]):
    """Identities by camera: a batch has so many of each, or a multiple, with K images each from whatever camera.

    The host's sampler of this name yields nothing: it takes only batches that are larger than those that it gives. As
    there, an identity is drawn the more often the more images it has.

    Args:
        labels: path, identity and camera of each image.
        batch: images in a batch of all processes.
        per_identity: K.
        weights: identities of each camera, in the order of the cameras' names.
        seed: of the draws, the same in all processes.
    """

    def __init__(self, labels: Sequence[tuple], batch: int, per_identity: int, weights: Sequence[int], seed: int):
        self.weights, self.per_identity, self.seed = weights, per_identity, seed
        self._images: dict[str, list[int]] = {}
        seen: dict[str, set[str]] = {}
        for index, (_, pid, camera) in enumerate(labels):
            self._images.setdefault(pid, []).append(index)
            seen.setdefault(camera, set()).add(pid)
        self._seen = {camera: sorted(seen[camera]) for camera in sorted(seen)}
        _check_weights(weights, {camera: len(people) for camera, people in self._seen.items()})
        least = sum(weights) * per_identity
        if batch % least or batch % (per_identity * comm.get_world_size()):
            raise InputError(
                f"SetReWeightSampler: SOLVER.IMS_PER_BATCH {batch} does not divide by {least}, which is "
                f"DATALOADER.NUM_INSTANCE times the sum of SET_WEIGHT, or by {comm.get_world_size()} processes"
            )
        self._rounds = batch // least

    def __iter__(self) -> Iterator[int]:
        rng = np.random.default_rng(self.seed)
        while True:
            drawn = [index for _ in range(self._rounds) for index in self._draw_round(rng)]
            part = len(drawn) // comm.get_world_size()
            yield from drawn[comm.get_rank() * part : (comm.get_rank() + 1) * part]

    def _draw_round(self, rng: np.random.Generator) -> Iterator[int]:
        for people, number in zip(self._seen.values(), self.weights, strict=True):
            chances = np.array([len(self._images[pid]) for pid in people], float)
            for pid in rng.choice(people, number, replace=False, p=chances / chances.sum()):
                images = self._images[pid]
                yield from rng.choice(images, self.per_identity, replace=len(images) < self.per_identity).tolist()


def _check_weights(weights: Sequence[int], people: Mapping[str, int]) -> None:
    """Check the identities that are asked for against those that each camera has seen."""
    if len(weights) != len(people):
        raise InputError(
            f"DATALOADER.SET_WEIGHT has {len(weights)} numbers; SetReWeightSampler takes one for each of the "
            f"{len(people)} training cameras, in this order: {', '.join(people)}"
        )
    for weight, (camera, number) in zip(weights, people.items(), strict=True):
        if not 0 <= weight <= number:
            raise InputError(f"DATALOADER.SET_WEIGHT asks for {weight} identities of {camera}, which has seen {number}")
    if not sum(weights):
        raise InputError("DATALOADER.SET_WEIGHT is 0 for every camera")
