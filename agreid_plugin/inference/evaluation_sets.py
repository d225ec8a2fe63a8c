"""Evaluation sets of a configuration of either host, and the features of their images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from types import ModuleType

import numpy as np
from tqdm import tqdm

from agreid_plugin.data.datasets import Dataset
from agreid_plugin.data.images import Picture
from agreid_plugin.data.protocols import Protocol, select
from agreid_plugin.errors import InputError, unknown
from agreid_plugin.evaluation.evaluation_sets import EvaluationSet, computable
from agreid_plugin.evaluation.features import FeatureSet, load_features
from agreid_plugin.evaluation.ranking_options import RankingOptions
from agreid_plugin.host import find_host, load_host
from agreid_plugin.inference.extractor import Extractor
from agreid_plugin.retrieval.index.entries import Entry
from agreid_plugin.types import Record, View, platform_label, view_label


@dataclass(frozen=True)
class EvaluationSetup:
    """The evaluation sets of a configuration, and how features are compared on them."""

    sets: list[EvaluationSet]
    comparison: RankingOptions

    def find(self, name: str = "") -> tuple[EvaluationSet, Protocol]:
        """Return a protocol by its full or short name, the first without one, and its test set."""
        known = {str(each): (tested, each) for tested in self.sets for each in tested.protocols.values()}
        if not name:
            return next(iter(known.values()))
        found = [pair for full, pair in known.items() if name in (full, full.partition("/")[2])]
        if not found:
            raise unknown("protocol", name, known)
        return found[0]


def load_evaluation_setup(config: str | Path, overrides: Sequence[str] = ()) -> EvaluationSetup:
    """Return the evaluation sets of a configuration of either host."""
    host = _host(config)
    return EvaluationSetup(host.read_test_sets(config, list(overrides)), host.read_comparison(config, list(overrides)))


def load_kept_features(
    path: str | Path, config: str | Path, overrides: Sequence[str] = ()
) -> tuple[FeatureSet, EvaluationSetup]:
    """Read what `fastreid eval --save-features` kept, and say what can be computed from it; no dataset is needed."""
    features = load_features(path)
    protocols = {each.name: each for each in computable(features, ())}
    comparison = _host(config).read_comparison(config, list(overrides))
    return features, EvaluationSetup([EvaluationSet(features.dataset, protocols)], comparison)


def _host(config: str | Path) -> ModuleType:
    return load_host(find_host(config), "inference")


def extract_features(extractor: Extractor, tested: EvaluationSet) -> FeatureSet:
    """Make the features of a test set's images and, if captions ask, of its captions; show how many are done."""
    by_key: dict[str | int, np.ndarray] = {}
    with tqdm(total=len(tested.records), desc="extracting", unit="image", leave=False, disable=None) as bar:
        for part in extractor.extract_pictures(map(make_picture, tested.records)):
            by_key |= dict(zip(part.paths, part.features, strict=True))
            bar.update(len(part.paths))
    if tested.has_text:
        captions = [caption for record in tested.records for caption in record.captions]
        by_key |= dict(enumerate(extractor.texts(captions)))
    method = extractor.model.method
    return tested.feature_set(by_key, "" if method is None else method.view_source)


def make_picture(record: Record | Entry) -> Picture:
    """Return the image of a record, or of a gallery's entry, with what is known of it."""
    return Picture(record.path, view=view_label(record.view), platform=platform_label(record.platform))


def examples(dataset: Dataset, protocol: Protocol, count: int, seed: int = 0) -> list[Record]:
    """Choose images of a protocol to look at, of all views alike and of different people while there are any.

    Args:
        dataset: the dataset.
        protocol: whose queries and gallery images.
        count: how many, or all if there are fewer.
        seed: of the choice.
    """
    if count < 1:
        raise InputError(f"count={count} should be 1 or more")
    chosen = select(protocol, dataset)
    records = sorted(
        {each.path: each for each in (*chosen.query, *chosen.gallery)}.values(), key=lambda each: each.path
    )
    drawn = [records[place] for place in np.random.default_rng(seed).permutation(len(records))]
    one_each = {each.pid: each for each in reversed(drawn)}
    drawn.sort(key=lambda each: each is not one_each[each.pid])  # a first image of everybody, then the others
    by_view = [[each for each in drawn if each.view == view] for view in (*View, None)]
    in_turn = [each for turn in zip_longest(*by_view) for each in turn if each is not None]
    return sorted(in_turn[:count], key=lambda each: (view_label(each.view), each.path))
