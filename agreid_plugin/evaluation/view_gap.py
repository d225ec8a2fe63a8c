"""View gap of a dataset: what a small tower of a fixed recipe confuses within a view and across views.

The reference tower is a plain ViT of four blocks that learns identities, both views of a person one class, from the
dataset's training people. It has seen neither the test people nor anything else, so the card says as much about the
number of training people as about the pictures: compare cards of like sets.

Shapes: Q queries, G gallery images.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tabulate import tabulate
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from agreid_plugin.data.atomic_write import atomic_write
from agreid_plugin.data.check import TEST_SPLITS, fingerprint
from agreid_plugin.data.datasets import Dataset
from agreid_plugin.data.images import read_image
from agreid_plugin.data.pixels import PHOTOGRAPHS, measure_pixels
from agreid_plugin.data.rng import seeded
from agreid_plugin.errors import InputError
from agreid_plugin.nn.vit import VisionTransformer
from agreid_plugin.types import Record, View

VERSION = 1  # of the recipe and of the card: another gives other numbers
SIZE = (64, 32)
WIDTH = 128
EPOCHS, BATCH, RATE = 24, 32, 1e-3
TRAIN_PEOPLE, TEST_PEOPLE, PICTURES = 200, 200, 12
PICTURES_MEASURED = 600  # of a view
"""At most as many, so that a large dataset takes minutes too; people in the order of their numbers."""


@dataclass(frozen=True)
class ViewGapCard:
    """View gap of a dataset.

    Attributes:
        pixels: `aerial` and `ground` -> pixel statistics of the test pictures.
        train_people: people that the tower learned.
        test_people: people that it was measured on.
        same_view: mean cosine of a query to other people in its view.
        cross_view: to other people in the other view.
        same_person: to its own person in the other view.
        rank1_both: Rank-1 in percent when both views are searched, its person being in the other one (AG-both).
        rank1_within: Rank-1 in percent among the pictures of the query's view.
        rank1_across: Rank-1 in percent among those of the other view.
        errors: queries that AG-both gets wrong.
        same_view_errors: share of them that find another person in the query's view; half would be no gap.
    """

    pixels: dict[str, dict[str, float]]
    train_people: int
    test_people: int
    same_view: float
    cross_view: float
    same_person: float
    rank1_both: float
    rank1_within: float
    rank1_across: float
    errors: int
    same_view_errors: float

    def lines(self) -> list[str]:
        """Return the card as lines of text."""
        rows = {**self.pixels, "photographs": asdict(PHOTOGRAPHS)}
        table = [[name, *(f"{value:.2f}" for value in row.values())] for name, row in rows.items()]
        head = ["pixels", *(name.replace("_", " ") for name in asdict(PHOTOGRAPHS))]
        align = ["left"] + ["right"] * (len(head) - 1)
        return [
            "",
            *tabulate([head, *table], tablefmt="plain", colalign=align, disable_numparse=True).splitlines(),
            "",
            f"view gap, by a ViT trained on {self.train_people} people, on {self.test_people} others:",
            f"  cosine to strangers: {self.same_view:+.3f} same view, {self.cross_view:+.3f} other view; "
            f"to the person in the other view {self.same_person:+.3f}",
            f"  Rank-1: {self.rank1_within:.1f} within views, {self.rank1_across:.1f} across, "
            f"{self.rank1_both:.1f} when strangers of both views are there",
            f"  {self.same_view_errors:.0%} of those {self.errors} errors are strangers in the same view",
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the card as plain data for JSON, with the statistics of photographs."""
        return asdict(self) | {"photographs": asdict(PHOTOGRAPHS)}


def measure_view_gap(dataset: Dataset, progress: bool = True) -> ViewGapCard:
    """Train the reference tower on a dataset's training people and measure it on its test people.

    The numbers are kept in the user's cache folder, by the copy's fingerprint.

    Raises:
        InputError: there are no people seen from both views in train and in test.
    """
    train = _choose(dataset, ("train",), TRAIN_PEOPLE)
    test = _choose(dataset, TEST_SPLITS, TEST_PEOPLE)
    kept = _cache_file(dataset)
    try:
        return ViewGapCard(**json.loads(kept.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # none, or damaged
        card = _measure(train, test, progress)
    with suppress(OSError):  # then it is measured again
        kept.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(kept) as draft:
            draft.write_text(json.dumps(asdict(card)), encoding="utf-8")
    return card


def _cache_file(dataset: Dataset) -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agreid_plugin"
    key = sha256(f"{fingerprint(dataset)} {VERSION} {torch.get_num_threads()}".encode()).hexdigest()
    return folder / f"view-gap-{key[:16]}.json"


def _choose(dataset: Dataset, splits: Sequence[str], people: int) -> list[Record]:
    """Return at most so many people that both views show, each with a few pictures from either."""
    found: dict[int, dict[View, list[Record]]] = {}
    for record in sorted(dataset.split(*splits), key=lambda record: record.path):
        if record.view is not None:
            found.setdefault(record.pid, {}).setdefault(View(record.view), []).append(record)
    both = sorted(pid for pid, seen in found.items() if len(seen) == len(View))
    if len(both) < 2:
        raise InputError(
            f"{dataset.name} has no view gap to measure: {len(both)} people of {' and '.join(splits)} are seen from "
            "the air and from the ground, it takes 2"
        )
    return [record for pid in both[:people] for seen in found[pid].values() for record in seen[: PICTURES // 2]]


def _measure(train: list[Record], test: list[Record], progress: bool) -> ViewGapCard:
    with seeded(VERSION):
        tower = _train(_read(train), np.unique([record.pid for record in train], return_inverse=True)[1], progress)
    pids, views = (np.array([getattr(record, name) for record in test]) for name in ("pid", "view"))
    return ViewGapCard(
        pixels=_measure_pixels(test, progress),
        train_people=len({record.pid for record in train}),
        test_people=len(set(pids.tolist())),
        **count_confusions(_embed(tower, _read(test)).numpy(), pids, views),
    )


def count_confusions(features: np.ndarray, pids: np.ndarray, views: np.ndarray) -> dict[str, Any]:
    """Return the numbers of `ViewGapCard` from normalized features, every picture being a query among all others."""
    similar = features @ features.T
    person, view, other = pids[:, None] == pids, views[:, None] == views, ~np.eye(len(pids), dtype=bool)
    rows = np.arange(len(pids))
    best = np.where(person & view, -np.inf, similar).argmax(axis=1)
    right = pids[best] == pids
    return {
        "same_view": float(similar[~person & view].mean()),
        "cross_view": float(similar[~person & ~view].mean()),
        "same_person": float(similar[person & ~view].mean()),
        "rank1_both": 100 * float(right.mean()),
        "rank1_within": _rank1(similar, person, view & other),
        "rank1_across": _rank1(similar, person, ~view),
        "errors": int((~right).sum()),
        "same_view_errors": float(view[rows, best][~right].mean()) if not right.all() else 0.0,
    }


def _rank1(similar: np.ndarray, person: np.ndarray, searched: np.ndarray) -> float:
    """Return Rank-1 of the queries whose person is among the searched pictures."""
    best, queries = np.where(searched, similar, -np.inf).argmax(axis=1), (person & searched).any(axis=1)
    return 100 * float(person[np.arange(len(best)), best][queries].mean()) if queries.any() else float("nan")


def _measure_pixels(records: Sequence[Record], progress: bool) -> dict[str, dict[str, float]]:
    paths = {view: [record.path for record in records if record.view == view][:PICTURES_MEASURED] for view in View}
    return {view.name.lower(): asdict(measure_pixels(found, progress)) for view, found in paths.items()}


def _read(records: Sequence[Record]) -> Tensor:
    pictures = [read_image(record.path).resize(SIZE[::-1], Image.Resampling.BILINEAR) for record in records]
    return torch.from_numpy(np.stack([np.asarray(picture) for picture in pictures])).permute(0, 3, 1, 2) / 127.5 - 1


class _Tower(nn.Module):
    def __init__(self, people: int) -> None:
        super().__init__()
        self.vit = VisionTransformer(SIZE, patch_size=8, width=WIDTH, depth=4, heads=4, drop_path=0.0)
        self.neck = nn.BatchNorm1d(WIDTH)
        self.classes = nn.Linear(WIDTH, people, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return a feature an image, (B, WIDTH)."""
        return self.neck(self.vit(images, first=1)[:, 0])


def _train(images: Tensor, labels: np.ndarray, progress: bool) -> _Tower:
    classes = torch.from_numpy(labels)
    tower, steps = _Tower(int(labels.max()) + 1), EPOCHS * max(1, len(images) // BATCH)
    optimizer = torch.optim.AdamW(tower.parameters(), RATE, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    order = torch.cat([torch.randperm(len(images)) for _ in range(EPOCHS + 1)])
    for step in tqdm(range(steps), desc="reference tower", unit="step", disable=not progress):
        chosen = order[step * BATCH : (step + 1) * BATCH]
        logits = 16 * F.linear(F.normalize(tower(_shift(images[chosen]))), F.normalize(tower.classes.weight))
        loss = F.cross_entropy(logits, classes[chosen], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return tower.eval()


def _shift(images: Tensor) -> Tensor:
    """Mirror half of the images, and move the batch by up to two pixels."""
    mirrored = torch.where(torch.rand(len(images), 1, 1, 1) < 0.5, images.flip(3), images)
    row, column = torch.randint(0, 5, (2,)).tolist()
    return F.pad(mirrored, (2, 2, 2, 2), mode="replicate")[:, :, row : row + SIZE[0], column : column + SIZE[1]]


@torch.no_grad()
def _embed(tower: _Tower, images: Tensor) -> Tensor:
    return torch.cat([F.normalize(tower(part) + tower(part.flip(3))) for part in images.split(256)])
