import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from agreid_plugin.data.captions import (
    CaptionAugmentation,
    CaptionReader,
    clean,
    delete_words,
    list_captions,
    load_back_translations,
    split_captions,
)
from agreid_plugin.data.datasets import load
from agreid_plugin.errors import InputError
from agreid_plugin.types import Record


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("caption", "cleaned"),
    [
        ("A man. In RED!", "a man in red"),
        ('he said "hi" (twice) *very* #loud: yes; no~', "he said hi twice very loud yes no"),
        ("  two   spaces\tand\nlines ", "two spaces and lines"),
        ("t-shirt, jeans", "t-shirt, jeans"),
        ("...!", ""),
        ("", ""),
    ],
)
def test_cleaning(caption, cleaned):
    assert clean(caption) == cleaned


def test_the_first_77_words_are_kept():
    words = [f"w{number}" for number in range(100)]
    assert clean(" ".join(words)).split() == words[:77]
    assert clean("a b c", most=2) == "a b"


def test_words_are_deleted_as_often_as_asked():
    caption, generator = " ".join(["word"] * 100), seeded()
    left = sum(len(delete_words(caption, 0.05, generator).split()) for _ in range(100))
    assert 9400 < left < 9600  # 9500, of which 22 are one deviation
    assert delete_words("in this order", 0.0) == "in this order"


def test_what_is_left_keeps_its_order():
    caption = " ".join(map(str, range(50)))
    left = [int(word) for word in delete_words(caption, 0.5, seeded()).split()]
    assert left == sorted(set(left))
    assert len(left) < 50


def test_one_word_stays_when_all_would_go():
    found = {delete_words("red blue green", 1.0, seeded(seed)) for seed in range(30)}
    assert found == {"red", "blue", "green"}
    assert delete_words("alone", 1.0) == "alone"
    assert delete_words("", 1.0) == ""


def test_back_translations_take_the_captions_place():
    augment = CaptionAugmentation(back_translation=1.0)
    assert augment("A Man.", "A person!") == "a person"
    assert augment("A Man.", "") == "a man"
    generator = seeded()
    drawn = [CaptionAugmentation(back_translation=0.1)("a", "b", generator) for _ in range(1000)]
    assert 70 < drawn.count("b") < 130


def test_no_augmentation_is_cleaning_alone():
    assert CaptionAugmentation()("A Man. In red", "unused") == "a man in red"


@pytest.mark.parametrize("options", [{"deletion": 1.5}, {"back_translation": -0.1}])
def test_probabilities_are_between_0_and_1(options):
    (name,) = options
    with pytest.raises(InputError, match=f"{name}=.* should be between 0 and 1"):
        CaptionAugmentation(**options)


def make_set(root: Path, entries: list[dict]) -> Path:
    folder = root / "TAG-PEDES"
    (folder / "anno_dir").mkdir(parents=True)
    for number, entry in enumerate(entries):
        entry |= {"file_path": f"src/{number}.jpg", "id": number, "cam_id": 1}
        (folder / "images" / "src").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 8)).save(folder / "images" / entry["file_path"])
    (folder / "anno_dir" / "train_reid.json").write_text(json.dumps(entries))
    return root


def test_back_translations_are_read_from_the_annotations(tmp_path):
    entries = [
        {"captions": ["one", "two"], "captions_bt": ["uno", "due"]},
        {"captions": ["three"], "captions_bt": []},
        {"captions": ["four"]},
        {"captions": ["five"], "captions_bt": [""]},
    ]
    dataset = load("TAG-PEDES", make_set(tmp_path, entries))
    first = dataset.records[0].path
    assert load_back_translations(dataset) == {(first, "one"): "uno", (first, "two"): "due"}


def test_as_many_back_translations_as_captions(tmp_path):
    dataset = load("TAG-PEDES", make_set(tmp_path, [{"captions": ["one", "two"], "captions_bt": ["uno"]}]))
    with pytest.raises(InputError, match=r"train_reid.json: entry 1: 1 captions_bt for 2 captions: one each, or none"):
        load_back_translations(dataset)


RECORDS = [Record("a", 1, captions=("Red.", "Blue.")), Record("b", 2), Record("c", 1, 3, captions=("Green.",))]


def test_captions_stand_in_a_row():
    assert list_captions(RECORDS) == ["Red.", "Blue.", "Green."]


def test_every_caption_has_its_record():
    found = list(split_captions(RECORDS))
    assert [(each.path, *each.captions) for each in found] == [("a", "Red."), ("a", "Blue."), ("c", "Green.")]
    assert found[2] == RECORDS[2]


def letters(caption: str) -> torch.Tensor:
    return torch.tensor([ord(letter) for letter in caption])


def test_a_reader_draws_one_of_the_captions():
    torch.manual_seed(0)
    read = CaptionReader(letters, CaptionAugmentation())
    found = ["".join(map(chr, read(RECORDS[0]))) for _ in range(40)]
    assert set(found) == {"red", "blue"}
    assert 5 < found.count("red") < 35


def test_a_reader_knows_the_back_translation_of_its_image():
    read = CaptionReader(letters, CaptionAugmentation(back_translation=1.0), {("c", "Green."): "verdant"})
    assert "".join(map(chr, read(RECORDS[2]))) == "verdant"
    other = Record("other", 1, captions=("Green.",))
    assert "".join(map(chr, read(other))) == "green"
