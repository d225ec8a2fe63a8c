"""AG-Synth for recipes that bring their own dataset: made once, where the recipe looks for it."""

from __future__ import annotations

import json
from pathlib import Path

from agreid_plugin.data.datasets import DATASETS
from agreid_plugin.data.synth import LAYOUTS, make_agsynth
from agreid_plugin.data.synth.make import MARKER, folder_of
from agreid_plugin.errors import InputError
from agreid_plugin.hosts.fastreid.config import Key
from agreid_plugin.hosts.fastreid.data import dataset_root, source_of

KEYS = (
    Key("DATASETS.AGSYNTH.IDS", 0, "Make AG-Synth with as many people if the dataset is missing; 0: never."),
    Key("DATASETS.AGSYNTH.IMAGES_PER_ID", 12, "AG-Synth: pictures of each person, half of them from the air."),
    Key("DATASETS.AGSYNTH.SIZE", [256, 128], "AG-Synth: height and width of a picture."),
    Key("DATASETS.AGSYNTH.SEED", 0, "AG-Synth: another seed, other people and pictures."),
)


def make_missing(cfg) -> None:
    """Make every dataset of the configuration that is missing, if it asks for AG-Synth.

    Raises:
        InputError: no layout of AG-Synth is that dataset's, or the folder has another dataset than is asked for.
    """
    wanted = cfg.DATASETS.AGSYNTH
    if not wanted.IDS:
        return
    root = Path(dataset_root(cfg))
    for name in sorted({source_of(name) or name for name in (*cfg.DATASETS.NAMES, *cfg.DATASETS.TESTS)}):
        layout = _layout_of(name)
        options = {"ids": wanted.IDS, "images_per_id": wanted.IMAGES_PER_ID, "size": list(wanted.SIZE)}
        options |= {"layout": layout, "seed": wanted.SEED}
        folder = root / folder_of(layout)
        if folder.is_dir() and any(folder.iterdir()):
            _check_same(folder, options)
            continue
        make_agsynth(root, **options | {"size": tuple(wanted.SIZE)})


def _layout_of(dataset: str) -> str:
    by_folder = {folder_of(layout): layout for layout in LAYOUTS if folder_of(layout) in DATASETS}
    if dataset not in by_folder:
        raise InputError(f"DATASETS.AGSYNTH.IDS: AG-Synth has no layout of {dataset}; it has {', '.join(by_folder)}")
    return by_folder[dataset]


def _check_same(folder: Path, options: dict) -> None:
    """Refuse a folder with other pictures than the recipe's: its numbers would be those of another dataset."""
    marker = folder / MARKER
    made = json.loads(marker.read_text(encoding="utf-8")) if marker.is_file() else None
    if made == options:
        return
    found = "a dataset that is not AG-Synth" if made is None else _difference(made, options)
    raise InputError(
        f"{folder} holds {found}; name another DATASETS.ROOT, delete the folder, or set DATASETS.AGSYNTH.IDS 0 to "
        "take it as it is"
    )


def _difference(made: dict, options: dict) -> str:
    parts = [f"{key} {made.get(key)} instead of {value}" for key, value in options.items() if made.get(key) != value]
    return f"AG-Synth with {', '.join(parts)}"
