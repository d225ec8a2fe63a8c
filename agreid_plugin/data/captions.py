"""Caption cleaning as in TBPS-CLIP and TAG-CLIP, and caption augmentation: back-translation and word deletion."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Generator, Tensor

from agreid_plugin.data.datasets import DATASETS, Dataset
from agreid_plugin.data.datasets.text_sets import PATH_KEYS, TEXT_SETS, TRANSLATIONS, as_list, get_path
from agreid_plugin.data.datasets.tree import Tree
from agreid_plugin.data.files import read_entries
from agreid_plugin.data.transforms.base import happens
from agreid_plugin.errors import InputError, require_within
from agreid_plugin.types import Record

MAX_WORDS = 77
_MARKS = re.compile(r'[.!"()*#:;~]')


def clean(caption: str, most: int = MAX_WORDS) -> str:
    """Return a caption in lower case, without marks but commas and hyphens, its first `most` words one space apart.

    Example:
        >>> clean('A woman in a  "T-shirt", walking.')
        'a woman in a t-shirt , walking'
    """
    return " ".join(_MARKS.sub(" ", caption.lower()).split()[:most])


@dataclass(frozen=True)
class CaptionAugmentation:
    """Cleans a caption after it was replaced by its back-translation or not, and leaves out some words.

    TBPS-CLIP has 0.1 and 0.05. TAG-CLIP changes no caption.

    Attributes:
        back_translation: how likely a caption that has one is replaced.
        deletion: how likely each word is left out; one stays in any case.
    """

    back_translation: float = 0.0
    deletion: float = 0.0

    def __post_init__(self) -> None:
        require_within("back_translation", self.back_translation, 0, 1)
        require_within("deletion", self.deletion, 0, 1)

    def __call__(self, caption: str, translated: str = "", generator: Generator | None = None) -> str:
        """Return the augmented caption; `translated` is empty without a back-translation."""
        if translated and happens(self.back_translation, generator):
            caption = translated
        return delete_words(clean(caption), self.deletion, generator)


@dataclass(frozen=True)
class CaptionReader:
    """Tokenizer of one of a record's captions, augmented for training.

    Attributes:
        tokenize: from a caption to its tokens, (L,).
        augment: changes a caption.
        translations: (image, caption) -> its back-translation; see `load_back_translations`.
    """

    tokenize: Callable[[str], Tensor]
    augment: CaptionAugmentation
    translations: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def __call__(self, record: Record) -> Tensor:
        """Return the tokens of a caption, drawn if there are several: (L,)."""
        caption = record.captions[int(torch.randint(len(record.captions), ()))]
        return self.tokenize(self.augment(caption, self.translations.get((record.path, caption), "")))


def list_captions(records: Iterable[Record]) -> list[str]:
    """Return the captions of all records in a row."""
    return [caption for record in records for caption in record.captions]


def split_captions(records: Iterable[Record]) -> Iterator[Record]:
    """Yield a record for every caption of the records, in their order; one without a caption is left out."""
    for record in records:
        for caption in record.captions:
            yield replace(record, captions=(caption,))


def delete_words(caption: str, probability: float, generator: Generator | None = None) -> str:
    """Leave out each word with a probability; if none were left, one of them, drawn at random, stays."""
    words = caption.split()
    if not words or not probability:
        return caption
    kept = (torch.rand(len(words), generator=generator) >= probability).tolist()
    if not any(kept):
        return words[int(torch.randint(len(words), (), generator=generator))]
    return " ".join(word for word, stays in zip(words, kept, strict=True) if stays)


def load_back_translations(dataset: Dataset) -> dict[tuple[str, str], str]:
    """Return (image, caption) -> its back-translation, as far as the training annotations of a text set have them."""
    if dataset.name not in TEXT_SETS:
        return {}
    text_set = TEXT_SETS[dataset.name]
    tree = Tree(dataset.name, dataset.root, DATASETS[dataset.name].folders)
    file = tree.need(*text_set.combined, "anno_dir/train_reid.json", "train_reid.json")
    places = tree.folders(*text_set.images)
    known, found = {record.path for record in dataset.split("train")}, {}
    for number, entry in enumerate(read_entries(file, [PATH_KEYS, "captions"]), start=1):
        texts = _pair_translations(f"{file}: entry {number}", entry)
        path = next((path for place in places if (path := str(place / get_path(entry))) in known), None)
        if path:
            found.update({(path, caption): translated for caption, translated in texts})
    return found


def _pair_translations(where: str, entry: dict) -> list[tuple[str, str]]:
    captions, translated = (as_list(entry.get(key) or []) for key in ("captions", TRANSLATIONS))
    if translated and len(translated) != len(captions):
        raise InputError(f"{where}: {len(translated)} {TRANSLATIONS} for {len(captions)} captions: one each, or none")
    return [pair for pair in zip(captions, translated, strict=False) if pair[1]]
