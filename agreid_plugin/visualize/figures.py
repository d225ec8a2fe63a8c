"""Figures of a model on its evaluation set, each with its numbers as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from PIL import Image

from agreid_plugin.data.images import read_image
from agreid_plugin.data.transforms import PLRM
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.features import FeatureSet, load_features
from agreid_plugin.evaluation.rank_lists import RankList, build_rank_lists, choose_queries
from agreid_plugin.evaluation.ranking_options import RankingOptions
from agreid_plugin.inference.evaluation_sets import EvaluationSetup, examples, extract_features
from agreid_plugin.inference.extractor import Extractor
from agreid_plugin.types import UNKNOWN, Record, view_from_label, view_word
from agreid_plugin.visualize import experts, introspection, patches, ranks, scatter
from agreid_plugin.visualize.charts import expert_history, read_history

UNTRAINED = "untrained"
"""Stands for the model before its training."""


@dataclass(frozen=True)
class Rendering:
    """A picture, and its numbers as lists and dictionaries."""

    image: Image.Image
    data: dict[str, Any]


class Subject:
    """A model to draw, its evaluation set and a protocol. Features are extracted once.

    Args:
        extractor: the model; None where features are all that is needed.
        tested: what its configuration is tested on.
        protocol: a protocol's name; the first without one.
        features: those of the evaluation set, instead of extracting them.
    """

    def __init__(
        self,
        extractor: Extractor | None,
        tested: EvaluationSetup,
        protocol: str = "",
        features: FeatureSet | None = None,
    ):
        self.extractor, self.tested, self._given = extractor, tested, features
        self.test_set, self.protocol = tested.find(protocol)

    @cached_property
    def features(self) -> FeatureSet:
        """The features of the test set."""
        return extract_features(self.extractor, self.test_set) if self._given is None else self._given

    @property
    def name(self) -> str:
        """The name of the model."""
        return "features" if self.extractor is None else self.extractor.settings.name

    def examples(self, count: int, seed: int) -> list[Record]:
        """Choose images to look at."""
        return examples(self.test_set.dataset, self.protocol, count, seed)


def draw_ranks(subject: Subject, order: str = "random", queries: int = 5, top: int = 10, seed: int = 0) -> Rendering:
    """Draw queries with the first images of their rankings; see `choose_queries` for the order."""
    features, protocol, comparison = subject.features, subject.protocol, subject.tested.comparison
    (metrics,) = comparison.compute(features, [protocol])
    rows = choose_queries(metrics.per_query, queries, order, seed)
    found = build_rank_lists(features, protocol, comparison, rows, top)
    precision = dict(zip(metrics.per_query.row.tolist(), metrics.per_query.precision.tolist(), strict=True))
    notes = [f"AP {100 * precision[row]:.1f} %" for row in rows]
    word = "evenly spread" if order == "even" else order
    title = f"{protocol}: {len(rows)} {word} queries of {len(metrics.per_query.row)}"
    model = f"{subject.name}, " if subject.extractor else ""
    about = f"{model}mAP {metrics['mAP']:.1f} %; below an image its rank and {_describe_distance(comparison)}"
    return Rendering(ranks.draw_rank_sheet(found, title, about, notes), _ranks_as_json(found, order, precision))


def _describe_distance(comparison: RankingOptions) -> str:
    extra = [word for word, on in (("re-ranked", comparison.rerank), ("expanded", comparison.expansion)) if on]
    return " ".join([*extra, comparison.metric, "distance"])


def _ranks_as_json(found: Sequence[RankList], order: str, precision: Mapping[int, float]) -> dict[str, Any]:
    return {
        "protocol": found[0].protocol,
        "order": order,
        "queries": [
            {
                **_record_as_json(ranking.query),
                "row": ranking.row,
                "average_precision": round(precision[ranking.row], 6),
                "first_right": ranking.first_right,
                "listed": [
                    {
                        "rank": each.rank,
                        **_record_as_json(each.record),
                        "distance": round(each.distance, 6),
                        "right": each.right,
                    }
                    for each in ranking.listed
                ],
            }
            for ranking in found
        ],
    }


def draw_tsne(
    subject: Subject, others: Mapping[str, FeatureSet], identities: int = 8, most: int = 2000, seed: int = 0
) -> Rendering:
    """Draw test images on a plane, beside the planes of other models.

    Args:
        subject: the model.
        others: other models' features of the same images, by what is written above them; they stand first.
        identities: how many have a color.
        most: images at most.
        seed: of the choice and of t-SNE.
    """
    features = subject.features
    places, colored = scatter.choose_images(features.records, identities, most, seed)
    records = [features.records[place] for place in places]
    name = "after training" if UNTRAINED in others else "this model" if others else subject.name
    sets = {("before training" if key == UNTRAINED else key): other for key, other in others.items()}
    planes = {
        key: scatter.embed(each, each.rows(records).tolist(), seed) for key, each in {**sets, name: features}.items()
    }
    title = f"{features.dataset.name}: t-SNE of {len(records)} test images"
    data = {
        "dataset": features.dataset.name,
        "identities": colored,
        "images": [_record_as_json(record) for record in records],
        "planes": {
            key: {"points": each.points.round(4).tolist(), "nearest": each.nearest} for key, each in planes.items()
        },
    }
    return Rendering(scatter.draw_planes(planes, records, colored, title), data)


def load_other_features(
    subject: Subject, other: str, config: str, overrides: Sequence[str], device: str | None
) -> FeatureSet:
    """Return the features of the subject's test set that another model makes.

    Args:
        subject: whose test set.
        other: an npz of features, a checkpoint, or `untrained`.
        config: the configuration of the checkpoint.
        overrides: `KEY VALUE ...` on top of it.
        device: as of `Extractor`.
    """
    if other.endswith(".npz"):
        return load_features(other)
    if other == UNTRAINED:
        return extract_features(subject.extractor.make_untrained(config, overrides), subject.test_set)
    return extract_features(Extractor.from_config(config, other, device=device, overrides=overrides), subject.test_set)


def draw_expert_shares(subject: Subject, run: str | Path | None = None) -> Rendering:
    """Draw which experts are used for the images of which camera and, from a run's history, how that changed."""
    found = introspection.compute_expert_usage(subject.extractor, subject.test_set.records)
    history, unit = expert_history(read_history(run)) if run else ({}, "")
    by = "camera" if any(each.has_cameras for each in found) else "view"
    title = f"{subject.name} on {subject.test_set.dataset.name}: experts by {by}"
    data = [
        {
            "module": each.module,
            "group": each.group,
            "experts": list(each.experts),
            "cameras": [
                {"view": view_word(view_from_label(view)) or None, "camera": camera} for view, camera in each.cameras
            ],
            "shares": each.shares.round(6).tolist(),
        }
        for each in found
    ]
    return Rendering(experts.draw_experts(found, title, history, unit), {"groups": data, "training": bool(history)})


def draw_graph(subject: Subject, records: Sequence[Record], queries: int = 3) -> Rendering:
    """Draw the patches that query tokens choose."""
    if queries < 1:
        raise InputError(f"queries={queries} should be 1 or more")
    found = introspection.find_chosen_patches(subject.extractor, records)
    count = found[0].choices[0].places.shape
    title = f"{subject.name}: patches that the queries choose"
    about = ", ".join(
        f"{c.name}: {c.places.shape[1]} of {found[0].grid[0] * found[0].grid[1]}" for c in found[0].choices
    )
    data = [
        {
            **_record_as_json(each.record),
            "grid": list(each.grid),
            "chosen": {c.name: c.places.tolist() for c in each.choices},
        }
        for each in found
    ]
    words = (
        f"{count[0]} queries a branch, the fewer choose a patch, the paler it is; patches of a query, {about}"
        if count[0] > 1
        else f"patches chosen, {about}"
    )
    return Rendering(patches.draw_choices(found, title, queries, words), {"images": data})


def draw_attention(subject: Subject, records: Sequence[Record]) -> Rendering:
    """Draw what CLS attends to in the last block."""
    found = introspection.compute_attention(subject.extractor, records)
    title = f"{subject.name}: attention of CLS in the last block, mean of its heads"
    data = [
        {
            **_record_as_json(each.record),
            "grid": list(each.grid),
            "attention": each.attention.astype(float).round(6).tolist(),
        }
        for each in found
    ]
    return Rendering(patches.draw_attention(found, title), {"images": data})


def draw_plrm(
    paths: Sequence[str], size: tuple[int, int], draws: int, seed: int, options: Mapping[str, Any]
) -> Rendering:
    """Draw what PLRM does to images.

    Args:
        paths: the images.
        size: rows and columns that they are resized to.
        draws: of each.
        seed: of the draws.
        options: arguments of `PLRM`.
    """
    augmentation = PLRM(**options)
    images = patches.resize_images(augmentation, map(read_image, paths), size)
    always = PLRM(**{**options, "p_img": 1.0})
    samples = patches.draw_samples(always, images, draws, seed)
    rows, columns = (each // augmentation.n for each in size)
    changed = (samples != images).any(axis=-1).mean(axis=(2, 3))
    data = {
        "images": list(paths),
        "changed": changed.round(6).tolist(),
        "probabilities": augmentation.probabilities(rows, columns).double().numpy().round(6).tolist(),
    }
    return Rendering(
        patches.draw_plrm(augmentation, images, samples, "PLRM: patches turned and mixed with themselves"), data
    )


def _record_as_json(record: Record) -> dict[str, Any]:
    camera = {} if record.camera == UNKNOWN else {"camera": record.camera}
    return {"path": record.path, "pid": record.pid, "view": view_word(record.view) or None, **camera}
