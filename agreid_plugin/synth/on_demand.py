"""AG-Synth on demand: made for a recipe whose dataset is missing, in the folder where the recipe looks for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from agreid_plugin.data.datasets import DATASETS
from agreid_plugin.data.datasets.locations import AGSYNTH_FILE
from agreid_plugin.data.files import read_json
from agreid_plugin.errors import InputError, require_known
from agreid_plugin.synth.make import LAYOUTS, get_folder, make_agsynth
from agreid_plugin.synth.worlds import DEFAULT_WORLD, WORLDS


def make_missing(
    root: str | Path,
    datasets: Iterable[str],
    *,
    ids: int,
    images_per_id: int = 12,
    size: Sequence[int] = (256, 128),
    seed: int = 0,
    world: str = DEFAULT_WORLD,
    key: str = "DATASETS.AGSYNTH",
) -> None:
    """Make every dataset that is missing, if AG-Synth is asked for.

    Args:
        root: folder of the datasets.
        datasets: their names, as `CARGO`.
        ids: how many people; 0 makes nothing.
        images_per_id: pictures of each person, half of them from the air.
        size: height and width of a picture.
        seed: another seed, other people and pictures.
        world: `easy` or `gap`, see `make_agsynth`.
        key: the options' name in error messages: in capitals as fast-reid's keys, else as mmengine's.

    Raises:
        InputError: no world has that name, no layout of AG-Synth is that dataset's, or the folder has another dataset
            than is asked for.
    """
    if not ids:
        return
    ids_key, root_key = (f"{key}.IDS", "DATASETS.ROOT") if key.isupper() else (f"{key}.ids", "data_root")
    require_known(f"{key}.WORLD" if key.isupper() else f"{key}.world", world, WORLDS)
    height, width = size
    options: dict[str, Any] = {
        "ids": ids,
        "images_per_id": images_per_id,
        "size": [height, width],
        "seed": seed,
        "world": world,
    }
    for name in sorted(set(datasets)):
        layout = _get_layout(name, ids_key)
        folder = Path(root) / get_folder(layout)
        if _is_filled(folder):
            _check_same(folder, options | {"layout": layout}, ids_key, root_key)
        else:
            make_agsynth(root, layout=layout, **options | {"size": (height, width)})


def is_missing(root: str | Path, datasets: Iterable[str]) -> bool:
    """Return whether one of these datasets is not there, under the folder that AG-Synth would have."""
    return any(not _is_filled(Path(root) / name) for name in set(datasets))


def _is_filled(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def _get_layout(dataset: str, key: str) -> str:
    by_folder = {get_folder(layout): layout for layout in LAYOUTS if get_folder(layout) in DATASETS}
    if dataset not in by_folder:
        raise InputError(f"{key}: AG-Synth has no layout of {dataset}; it has {', '.join(by_folder)}")
    return by_folder[dataset]


def _check_same(folder: Path, options: dict[str, Any], ids_key: str, root_key: str) -> None:
    """Refuse a folder with other pictures than the recipe's: its numbers would be those of another dataset."""
    marker = folder / AGSYNTH_FILE
    made = {"world": "easy", **read_json(marker, dict)} if marker.is_file() else None  # the first had no other
    if made == options:
        return
    found = "a dataset that is not AG-Synth" if made is None else _difference(made, options)
    raise InputError(
        f"{folder} holds {found}; name another {root_key}, delete the folder, or set {ids_key} 0 to take it as it is"
    )


def _difference(made: dict[str, Any], options: dict[str, Any]) -> str:
    parts = [f"{key} {made.get(key)} instead of {value}" for key, value in options.items() if made.get(key) != value]
    return f"AG-Synth with {', '.join(parts)}"
