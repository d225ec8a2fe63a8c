"""Captions in the host's data path: which are learned from, how they become tokens, and sets that have none."""

import shutil
from pathlib import Path

import torch
from conftest import assert_one_line
from small_fastreid import write_tiny
from small_text import (
    TINY,
    annotations,
    configured,
    write_annotations,
)

from agreid_plugin.data.captions import clean
from agreid_plugin.hosts.fastreid.data.loaders import build_train_loader
from agreid_plugin.nn.clip import EOT, SOT, Tokenizer
from agreid_plugin.nn.clip_build import build_clip

pytest_plugins = ("small_text",)


def test_all_captions_are_pairs_and_one_is_drawn(tiny_text):
    pairs = build_train_loader(configured(tiny_text)).dataset
    assert len(pairs) == 47
    texts = [item.record.captions for item in pairs.img_items]
    assert all(len(captions) == 1 for captions in texts)
    tokenize = Tokenizer(77)
    for number in (0, 5):
        assert torch.equal(pairs[number].tokens, tokenize(clean(texts[number][0])))

    images = build_train_loader(configured(tiny_text, "INPUT.CAPTIONS", "one")).dataset
    assert len(images) == 24
    record = images.img_items[4].record
    drawn = {tuple(images[4].tokens.tolist()) for _ in range(30)}
    assert drawn == {tuple(tokenize(clean(caption)).tolist()) for caption in record.captions}
    assert len(drawn) == 2


def test_words_are_left_out_and_captions_translated(tiny_text, tmp_path, captioned_pictures, caplog):
    dropped = build_train_loader(configured(tiny_text, "INPUT.TEXT.WORD_DELETION", 0.5)).dataset
    whole = Tokenizer(77)(clean(dropped.img_items[5].record.captions[0]))
    assert (dropped[5].tokens != 0).sum() < (whole != 0).sum()

    translate = ("INPUT.TEXT.BACK_TRANSLATION", 1.0)
    build_train_loader(configured(tiny_text, *translate))
    assert "no training caption has a back-translation: INPUT.TEXT.BACK_TRANSLATION changes nothing" in caplog.text
    root = shutil.copytree(captioned_pictures, tmp_path / "data")
    entries = annotations(root / "TAG-PEDES", "train")
    entries[3]["captions_bt"] = ["Translated!"] * 2
    write_annotations(root / "TAG-PEDES", "train", entries)
    pairs = build_train_loader(configured(write_tiny(tmp_path, TINY, root), *translate)).dataset
    name = Path(entries[3]["file_path"]).name
    found = [pairs[n].tokens for n, item in enumerate(pairs.img_items) if Path(item[0]).name == name]
    assert len(found) == 2
    assert all(torch.equal(tokens, Tokenizer(77)("translated")) for tokens in found)


def test_images_without_captions_are_left_out(tmp_path, captioned_pictures, caplog):
    root = shutil.copytree(captioned_pictures, tmp_path / "data")
    entries = annotations(root / "TAG-PEDES", "train")
    for entry in entries[:3]:
        entry["captions"] = []
    write_annotations(root / "TAG-PEDES", "train", entries)
    caplog.set_level("INFO")
    pairs = build_train_loader(configured(write_tiny(tmp_path, TINY, root))).dataset
    assert len(pairs) == 42
    assert "3 of 24 training images have no caption and are left out" in caplog.text


def test_the_tokenizer_is_the_towers():
    tower = build_clip(
        image_size=(16, 16), width=8, heads=1, layers=1, text_width=8, text_heads=1, text_layers=1, text_length=12
    ).text
    for caption in ("", "man", "a man in a red t-shirt, walking", "word " * 30):
        assert torch.equal(Tokenizer(12)(caption), tower.tokenize(caption)[0])
        assert Tokenizer(12).is_long(caption) == (tower.count(caption) > 12)
    assert Tokenizer(12)("word " * 30)[[0, -1]].tolist() == [SOT, EOT]


def test_models_that_read_no_captions_are_refused_text_sets(tiny_text, fastreid_command):
    plain = ["MODEL.META_ARCHITECTURE", "Baseline", "MODEL.LOSSES.NAME", "['CrossEntropyLoss']"]
    outcome = fastreid_command("train", "--config", tiny_text, *plain, "MODEL.BACKBONE.FEAT_DIM", 16)
    assert_one_line(outcome, "TAG-PEDES/T2I asks with sentences, which Baseline does not read")


def test_sets_without_captions_are_refused(tiny_text, agsynth, fastreid_command):
    sets = ["DATASETS.ROOT", agsynth, "DATASETS.NAMES", "['CARGO']", "DATASETS.TESTS", "['CARGO']"]
    outcome = fastreid_command("train", "--config", tiny_text, *sets)
    assert_one_line(outcome, "TAGCLIP learns from captions, but CARGO has none", "TAG-PEDES")
