"""Caption statistics in the log: back-translations, and captions that are cut."""

from __future__ import annotations

from collections.abc import Iterable
from logging import Logger

from agreid_plugin.data.captions import clean, list_captions, load_back_translations
from agreid_plugin.data.datasets import Dataset
from agreid_plugin.nn.clip import Tokenizer
from agreid_plugin.types import Record

Translations = dict[tuple[str, str], str]
"""(image, caption) -> its back-translation."""


def log_translations(datasets: Iterable[Dataset], setting: str, logger: Logger) -> Translations:
    """Return the back-translations of training captions, and log how many there are.

    Args:
        datasets: what is trained on.
        setting: what the user asked for them with.
        logger: the host's.
    """
    found = {pair: text for dataset in datasets for pair, text in load_back_translations(dataset).items()}
    if found:
        logger.info("%d training captions have a back-translation", len(found))
    else:
        logger.warning("no training caption has a back-translation: %s changes nothing", setting)
    return found


def log_long_captions(tokenizer: Tokenizer, records: Iterable[Record], which: str, logger: Logger) -> None:
    """Log in one line how many captions of `which` records are too long, if any are."""
    captions = list_captions(records)
    long = sum(tokenizer.is_long(clean(caption)) for caption in captions)
    if long:
        logger.info("%d of %d %s captions have more than %d tokens: cut", long, len(captions), which, tokenizer.length)
