"""Datasets for mmengine's loaders: training images, or the images and captions that the protocols of a test need."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mmengine.dataset import BaseDataset
from mmengine.dist import is_main_process
from mmengine.logging import MMLogger

from agreid_plugin.data.attributes import schema_to_rows
from agreid_plugin.data.bad_images import POLICIES, BadImages, Labels
from agreid_plugin.data.captions import clean, split_captions
from agreid_plugin.data.check import fingerprint
from agreid_plugin.data.datasets import Dataset, dataset_name, load
from agreid_plugin.data.datasets.locations import default_root
from agreid_plugin.engine import caption_report
from agreid_plugin.engine.caption_report import Translations
from agreid_plugin.engine.report import forward_logs
from agreid_plugin.errors import InputError, error_context, unknown
from agreid_plugin.evaluation import evaluation_sets
from agreid_plugin.evaluation.evaluation_sets import EvaluationSet
from agreid_plugin.hosts.mmengine.config.arguments import check_arguments
from agreid_plugin.hosts.mmengine.data.attributes import build_training_schema, make_agsynth_once
from agreid_plugin.hosts.mmengine.data.batches import build_sample
from agreid_plugin.hosts.mmengine.data.transforms import Tokenize
from agreid_plugin.hosts.mmengine.registry import DATASETS
from agreid_plugin.types import Record, platform_label, view_label

_logger = logging.getLogger(__name__)


def select_captions(
    tokenize: Tokenize, each: bool, datasets: Sequence[Dataset], records: Mapping[str, Sequence[Record]]
) -> tuple[dict[str, list[Record]], Translations]:
    """Return the records to learn from, by dataset, and the back-translations of their captions.

    Args:
        tokenize: reads the captions.
        each: a record for every caption, instead of one with all captions of an image.
        datasets: the training sets.
        records: their training images by the dataset's name.
    """
    captioned = {name: [record for record in found if record.captions] for name, found in records.items()}
    images, left = sum(map(len, records.values())), sum(map(len, captioned.values()))
    if not left:
        raise InputError(
            f"captions are to be learned from, but {', '.join(records)} has none: train on a text set, TAG-PEDES for "
            "example"
        )
    if left < images:
        _logger.info("%d of %d training images have no caption and are left out", images - left, images)
    log_long_captions(tokenize, (record for found in captioned.values() for record in found), "training")
    chosen = {name: list(split_captions(found)) if each else found for name, found in captioned.items()}
    return chosen, _load_translations(tokenize, datasets)


def log_long_captions(tokenize: Tokenize, records: Iterable[Record], which: str) -> None:
    """Log how many captions of these records are too long, if any are."""
    if is_main_process():
        caption_report.log_long_captions(tokenize.tokenizer, records, which, _logger)


def _load_translations(tokenize: Tokenize, datasets: Sequence[Dataset]) -> Translations:
    if not tokenize.augment.back_translation:
        return {}
    return caption_report.log_translations(datasets, "back_translation", _logger)


Info = dict[str, Any]
SPLITS = ("train", "val", "test")
CAPTION_CHOICES = ("all", "one")


@DATASETS.register_module()
@check_arguments(BaseDataset, given=("ann_file", "data_prefix", "filter_cfg", "test_mode"))
class ReIDDataset(BaseDataset):
    """Images and captions of our datasets.

    A training set has the images of one dataset or of several together, with identities numbered from 0 as in
    fast-reid. A test set has each image that a protocol needs once and, for protocols with text queries, the captions
    after them; `metainfo["test_set"]` has the protocols.

    Args:
        name: the dataset, or datasets to train on.
        data_root: its folder or the one that holds it; by default that of FASTREID_DATASETS, or `datasets`.
        split: `train`; `test`; or `val`, which is the test set with the validation split of a text set.
        protocols: of the test set; all that the dataset allows without any.
        options: further arguments of the dataset's parser; with several names, name -> options.
        skip_bad_names: leave out images whose names are not the dataset's.
        bad_images: policy for images that cannot be read: `error` stops and names the file; with `skip` another image
            of the same person replaces it in training, and a test goes without, see `BadImages`. The hook `Results`
            logs their number.
        attributes: names of those to learn, all without any, or rows `[name, [value, ...]]`; None: learn none.
        missing_attributes: learn although the attribute file lacks some training identities.
        captions: how captions are read: `which` (each caption of an image once an epoch, `all`, or one of them, drawn
            each time, `one`) and the arguments of `Tokenize`; None: they are not.
        agsynth: `ids`, `images_per_id`, `size`, `seed`, `world` of AG-Synth, which is made if the dataset is missing.
        pipeline: transforms of an image, the last of which is `Pack`.
        **kwargs: the host's arguments.
    """

    def __init__(
        self,
        name: str | Sequence[str],
        data_root: str = "",
        split: str = "train",
        protocols: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
        skip_bad_names: bool = False,
        bad_images: str = "error",
        attributes: Sequence[Any] | Mapping[str, Any] | None = None,
        missing_attributes: bool = False,
        captions: Mapping[str, Any] | None = None,
        agsynth: Mapping[str, Any] | None = None,
        pipeline: Sequence[Any] = (),
        **kwargs: Any,
    ):
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
        if bad_images not in POLICIES:
            raise unknown("bad_images", bad_images, POLICIES)
        self.policy, self.bad_images = bad_images, None
        root = data_root or default_root()
        self.split, self.protocols, self.skip_bad_names = split, tuple(protocols), skip_bad_names
        self.sources = _parse_sources(name, options or {}, split)
        self.attributes, self.missing_attributes = attributes, missing_attributes
        self.which, self.tokenize = _parse_captions(captions)
        make_agsynth_once(root, self.sources, agsynth)
        super().__init__(data_root=root, pipeline=list(pipeline), test_mode=split != "train", **kwargs)
        has_tokenize = any(isinstance(each, Tokenize) for each in self.pipeline.transforms)
        if self.tokenize and split == "train" and not has_tokenize:
            self.pipeline.transforms.insert(-1, self.tokenize)  # the last one packs

    @property
    def metainfo(self) -> Info:
        """Metadata of the dataset: copies, except for the test set and the list of bad images."""
        shared = ("test_set", "bad_images")
        return {name: value if name in shared else copy.deepcopy(value) for name, value in self._metainfo.items()}

    def load_data_list(self) -> list[Info]:
        """Read the dataset, and return labels and path of each item."""
        forward_logs(MMLogger.get_current_instance())  # that of the run, whichever tool started it
        datasets = [self._load(name, options) for name, options in self.sources.items()]
        self._metainfo["name"] = "+".join(self.sources)
        self._metainfo["fingerprint"] = "+".join(map(fingerprint, datasets))
        return self._list_training(datasets) if self.split == "train" else self._list_testing(*datasets)

    def full_init(self) -> None:
        """Read the dataset unless that is done."""
        super().full_init()
        if self.bad_images is None:
            self.bad_images = BadImages(len(self), self._bad_labels, self.policy, any_identity=self.test_mode)
            if self.test_mode and self.policy == "skip":  # a training set's metadata goes into checkpoints
                self._metainfo["bad_images"] = self.bad_images

    def prepare_data(self, idx: int) -> Info:
        """Return the pipeline's result for an item; mmengine would replace an item without a result by another."""
        info = self.get_data_info(idx)
        if info.get("caption_number") is not None:
            tokens = self.tokenize.tokenizer(clean(info["caption"]))
            return {"inputs": None, "data_samples": build_sample({**info, "tokens": tokens})}
        return self.bad_images.attempt(idx, lambda place: self._run_pipeline(info, self.get_data_info(place)))

    def _run_pipeline(self, info: Info, shown: Info) -> Info:
        """Return the pipeline's result for an item, from the image of `shown`, which may replace its image."""
        packed = self.pipeline(shown)
        if packed is None:
            raise InputError(
                f"a transform of the pipeline gave nothing for {shown['img_path']}: it has to give its results"
            )
        if self.test_mode and shown["img_path"] != info["img_path"]:  # the evaluation drops it by its own name
            packed["data_samples"].set_metainfo({"img_path": info["img_path"]})
        return packed

    def _bad_labels(self, index: int) -> Labels:
        info = self.get_data_info(index)
        return Labels(info["img_path"], info.get("gt_label", info["pid"]), info["view"])

    def _load(self, name: str, options: Mapping[str, Any]) -> Dataset:
        dataset = load(name, self.data_root, skip_bad_names=self.skip_bad_names, **options)
        for note in dataset.notes:
            _logger.info("%s: %s", name, note)
        return dataset

    def _list_training(self, datasets: Sequence[Dataset]) -> list[Info]:
        chosen, translations = {dataset.name: dataset.split("train") for dataset in datasets}, {}
        for name, records in chosen.items():
            if not records:
                raise InputError(f"dataset {name} under {os.path.abspath(self.data_root)} has no train images")
        schema = build_training_schema(self.attributes, datasets, chosen, self.missing_attributes)
        if self.tokenize:
            chosen, translations = select_captions(self.tokenize, self.which == "all", datasets, chosen)
        # fast-reid sorts identities by such words: a label is the same person in both hosts.
        words = {f"{name}_{record.pid}" for name, records in chosen.items() for record in records}
        labels = {word: label for label, word in enumerate(sorted(words))}
        self._metainfo |= {"num_ids": len(labels), "attributes": None if schema is None else schema_to_rows(schema)}
        return [
            {
                **_collect_labels(record),
                "gt_label": labels[f"{name}_{record.pid}"],
                "attributes": list(schema.encode(record)) if schema else None,
                **(_collect_captions(record, translations) if self.tokenize else {}),
            }
            for name, records in chosen.items()
            for record in records
        ]

    def _list_testing(self, dataset: Dataset) -> list[Info]:
        test_set = EvaluationSet(dataset, evaluation_sets.choose_protocols(dataset, self.protocols))
        for protocol in test_set.protocols.values():
            if protocol.kind == "text" and not self.tokenize:
                raise InputError(f"{protocol} asks with sentences: say how they are read, captions=dict(length=77)")
            evaluation_sets.check_query_gallery(protocol, dataset)
        if self.split == "val":
            test_set = evaluation_sets.add_validation(test_set)
        self._metainfo["test_set"] = test_set
        images = [_collect_labels(record) for record in test_set.records]
        if not test_set.has_text:
            return images
        log_long_captions(self.tokenize, test_set.records, "test")
        captions = ((record, caption) for record in test_set.records for caption in record.captions)
        return images + [
            {**_collect_labels(record), "caption": caption, "caption_number": number}
            for number, (record, caption) in enumerate(captions)
        ]


def _parse_sources(name: str | Sequence[str], options: Mapping[str, Any], split: str) -> dict[str, dict[str, Any]]:
    """Return the options of each dataset by its proper name."""
    if isinstance(name, str):
        return {dataset_name(name): dict(options)}
    if not name:
        raise InputError("name=[]: name a dataset")
    if len(name) > 1 and split != "train":
        raise InputError(f"name={list(name)}: a test set is of one dataset; several are for training")
    names = [dataset_name(each) for each in name]
    by_name = {dataset_name(each): dict(given) for each, given in options.items()}
    for each in by_name:
        if each not in names:
            raise unknown("options of dataset", each, names)
    return {each: by_name.get(each, {}) for each in names}


def _parse_captions(captions: Mapping[str, Any] | None) -> tuple[str, Tokenize | None]:
    """Return the choice of captions to learn from, and their tokenizer."""
    if captions is None:
        return CAPTION_CHOICES[0], None
    further = {name: value for name, value in captions.items() if name != "which"}
    which = captions.get("which", CAPTION_CHOICES[0])
    with error_context("captions"):
        if which not in CAPTION_CHOICES:
            raise unknown("which", which, CAPTION_CHOICES)
        return which, Tokenize(**further)


def _collect_labels(record: Record) -> Info:
    return {
        "img_path": record.path,
        "pid": record.pid,
        "camera": record.camera,
        "view": view_label(record.view),
        "platform": platform_label(record.platform),
    }


def _collect_captions(record: Record, translations: Translations) -> Info:
    mine = {(record.path, caption) for caption in record.captions}.intersection(translations)
    return {"captions": list(record.captions), "translations": {pair: translations[pair] for pair in mine}}
