"""AG-Synth for recipes that bring their own dataset, as the configuration asks for it."""

from __future__ import annotations

from agreid_plugin.hosts.fastreid.config.loading import Key, declare
from agreid_plugin.hosts.fastreid.data.datasets import dataset_of, dataset_root
from agreid_plugin.synth import on_demand

KEYS = (
    Key("DATASETS.AGSYNTH.IDS", 0, "Make AG-Synth with as many people if the dataset is missing; 0: never."),
    Key("DATASETS.AGSYNTH.IMAGES_PER_ID", 12, "AG-Synth: pictures of each person, half of them from the air."),
    Key("DATASETS.AGSYNTH.SIZE", [256, 128], "AG-Synth: height and width of a picture."),
    Key("DATASETS.AGSYNTH.SEED", 0, "AG-Synth: another seed, other people and pictures."),
)
declare(KEYS)


def make_missing(cfg) -> None:
    """Make every dataset of the configuration that is missing, if it asks for AG-Synth."""
    wanted = cfg.DATASETS.AGSYNTH
    on_demand.make_missing(
        dataset_root(cfg),
        {dataset_of(name) for name in (*cfg.DATASETS.NAMES, *cfg.DATASETS.TESTS)},
        ids=wanted.IDS,
        images_per_id=wanted.IMAGES_PER_ID,
        size=wanted.SIZE,
        seed=wanted.SEED,
    )
