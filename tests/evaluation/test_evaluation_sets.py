import logging

import numpy as np
import pytest

from agreid_plugin.data.datasets import Dataset, load
from agreid_plugin.data.protocols import Protocol
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.evaluation_sets import (
    VALIDATION,
    EvaluationSet,
    add_validation,
    check_query_gallery,
    choose_protocols,
)
from agreid_plugin.synth import make_agsynth
from agreid_plugin.types import Record

RECORDS = (
    Record("b.jpg", 1, 0, split="query", captions=("one", "two")),
    Record("a.jpg", 1, 1, split="gallery", captions=("three",)),
    Record("c.jpg", 2, 1, split="gallery"),
    Record("t.jpg", 4, split="test", captions=("five", "six")),
    Record("s.jpg", 4, split="test", captions=("seven",)),
    Record("v.jpg", 3, 1, split="val", captions=("four",)),
    Record("w.jpg", 3, 0, split="val"),
)
IMAGES = Protocol("MINE", "ALL", hide=("same_camera_same_id",), source="a test")
TEXT = Protocol("MINE", "T2I", source="a test", kind="text")


def made(*protocols: Protocol, records=RECORDS) -> EvaluationSet:
    return EvaluationSet(Dataset("MINE", "", records), {each.name: each for each in protocols})


@pytest.fixture(scope="module")
def cargo(tmp_path_factory):
    root = tmp_path_factory.mktemp("synth")
    make_agsynth(root, ids=8, images_per_id=4, size=(32, 16), workers=1, progress=False)
    return load("CARGO", root)


def test_every_image_is_there_once_and_sorted():
    assert [record.path for record in made(IMAGES, IMAGES).records] == ["a.jpg", "b.jpg", "c.jpg"]


def test_features_go_to_their_records():
    test_set = made(IMAGES)
    by_key = {"c.jpg": np.full(2, 3.0), "b.jpg": np.full(2, 2.0), "a.jpg": np.full(2, 1.0), "other.jpg": np.zeros(2)}
    found = test_set.feature_set(by_key, "given")
    assert found.images[0].tolist() == [[1, 1], [2, 2], [3, 3]]
    assert (found.captions, found.views, len(by_key)) == ((), "given", 4)


def test_captions_go_by_their_number_among_all():
    test_set = made(TEXT)
    captions = [caption for record in test_set.records for caption in record.captions]
    by_key = {record.path: np.ones(2) for record in test_set.records}
    by_key |= {number: np.full(2, number + 1.0) for number in reversed(range(len(captions)))}
    found = test_set.feature_set(by_key, "")
    assert len(captions) == 3
    assert found.captions[0][:, 0].tolist() == [1, 2, 3]


def test_a_missing_feature_is_named():
    by_key = {record.path: np.ones(2) for record in RECORDS}
    with pytest.raises(InputError, match=r"MINE: 1 of 3 images and captions have no feature, first c\.jpg"):
        made(IMAGES).feature_set({path: value for path, value in by_key.items() if path != "c.jpg"}, "")
    with pytest.raises(InputError, match="3 of 5 images and captions have no feature, first 0"):
        made(TEXT).feature_set(by_key, "")


def test_the_first_protocol_of_images_selects_the_best_model():
    assert made(IMAGES, TEXT).selection_protocol == IMAGES
    assert made(TEXT).selection_protocol is None
    assert not made(IMAGES).has_text


class Numbers(dict):
    """Some of an evaluation's numbers."""

    def __init__(self, protocol: str, **numbers: float):
        super().__init__({name.replace("_", "-"): value for name, value in numbers.items()})
        self.protocol = protocol


def test_what_selects_is_the_mean_of_map_and_rank_1():
    metrics = [Numbers("MINE/T2I", mAP=1.0, Rank_1=2.0), Numbers("MINE/ALL", mAP=30.0, Rank_1=50.0)]
    assert made(IMAGES, TEXT).selection_score(metrics) == 40
    assert made(TEXT).selection_score([*metrics, Numbers("None", mAP=1.0, Rank_1=2.0)]) is None
    assert made(IMAGES).selection_score(metrics[:1]) is None


def test_the_validation_split_selects_the_best_model_of_a_text_set(caplog):
    caplog.set_level(logging.INFO)
    found = add_validation(made(TEXT))
    assert found.selection_protocol is found.protocols[VALIDATION]
    assert found.selection_protocol.kind == "text"
    sides = found.dataset.lists[VALIDATION]
    assert ([each.path for each in sides.query], [each.path for each in sides.gallery]) == (
        ["v.jpg"],
        ["v.jpg", "w.jpg"],
    )
    assert "MINE: the best model is chosen by the 2 images to validate with" in caplog.text


def test_without_a_validation_split_nothing_selects(caplog):
    caplog.set_level(logging.INFO)
    text = made(TEXT, records=RECORDS[:5])
    assert add_validation(text) is text
    assert "MINE has no validation split: no best model is chosen" in caplog.text
    images = made(IMAGES)
    assert add_validation(images) is images


def test_protocols_are_chosen_by_name_or_all(cargo):
    assert list(choose_protocols(cargo, ["A2G", "ALL"])) == ["A2G", "ALL"]
    assert {"ALL", "A2A", "G2G", "A2G"} <= set(choose_protocols(cargo))
    with pytest.raises(InputError, match=r"'A2X' unknown \(did you mean A2G\?\)"):
        choose_protocols(cargo, ["A2X"])


def test_a_dataset_of_a_host_has_the_rule_of_market(caplog):
    (protocol,) = choose_protocols(Dataset("Market1501", "", RECORDS), ["anything"]).values()
    assert (protocol.name, protocol.hide) == ("ALL", ("same_camera_same_id",))
    assert "Market1501 has only the protocol ALL; asked for: anything" in caplog.text
    caplog.clear()
    for names in ((), ("ALL",)):
        assert list(choose_protocols(Dataset("Market1501", "", RECORDS), names)) == ["ALL"]
    assert not caplog.text


def test_protocols_that_cannot_be_computed_are_refused(cargo):
    nobody = Dataset("CARGO", cargo.root, tuple(cargo.split("train")))
    with pytest.raises(InputError, match="no protocol of CARGO can be computed: "):
        choose_protocols(nobody)


def test_sides_without_a_match_are_refused():
    check_query_gallery(IMAGES, Dataset("MINE", "", RECORDS))
    with pytest.raises(InputError, match="MINE/ALL: none of its 1 queries has a match among 1 gallery images"):
        check_query_gallery(IMAGES, Dataset("MINE", "", (RECORDS[0], RECORDS[2])))
