import numpy as np
import pytest
import scipy.io
from trees import write_mat

from agreid_plugin.data.attributes import (
    CP2108_APPEARANCE,
    CP2108_KINDS,
    QUT_GROUPS,
    AttributeSchema,
    choose,
    expand_kinds,
)
from agreid_plugin.data.datasets.ag_reid import read_qut_mat
from agreid_plugin.errors import InputError
from agreid_plugin.types import UNKNOWN, Record

SCHEMA = AttributeSchema({"hair": ("short", "long"), "bag": ("none", "backpack", "handbag")})


def test_qut_has_15_groups_and_88_values():
    assert len(QUT_GROUPS) == 15
    assert sum(map(len, QUT_GROUPS.values())) == 88
    assert all(values[-1] == "unknown" and len(set(values)) == len(values) for values in QUT_GROUPS.values())


def test_cp2108_has_12_appearance_attributes_sorted():
    assert len(set(CP2108_APPEARANCE)) == 12
    assert list(CP2108_APPEARANCE) == sorted(CP2108_APPEARANCE)


def test_cp2108_has_22_attributes_of_three_kinds():
    assert {kind: len(names) for kind, names in CP2108_KINDS.items()} == {
        "biological": 8,
        "appearance": 12,
        "environment": 2,
    }
    assert len({name for names in CP2108_KINDS.values() for name in names}) == 22


def test_encode_and_decode_by_hand():
    assert SCHEMA.encode({"bag": "handbag"}) == (UNKNOWN, 2)
    assert SCHEMA.encode(Record("a.jpg", 1, attributes={"hair": "long", "bag": "none", "age": "old"})) == (1, 0)
    assert SCHEMA.decode((UNKNOWN, 2)) == {"bag": "handbag"}
    assert SCHEMA.names == ("hair", "bag")
    assert SCHEMA.sizes == (2, 3)
    assert SCHEMA.only(["bag"]).encode({"hair": "long"}) == (UNKNOWN,)


def test_schema_collected_from_records_is_sorted():
    people = [{"hair": "short", "bag": "none"}, {"hair": "long"}, {}]
    schema = AttributeSchema.collect(Record("a.jpg", 1, attributes=told) for told in people)
    assert schema.groups == {"bag": ("none",), "hair": ("long", "short")}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: SCHEMA.encode({"hair": "lonk"}), ["'hair'", "'lonk'", "did you mean long"]),
        (lambda: SCHEMA.only(["hat"]), ["attribute 'hat' unknown", "bag, hair"]),
        (lambda: SCHEMA.decode((1,)), ["1 attribute labels for 2 attributes"]),
    ],
)
def test_bad_attributes_are_named(call, words):
    with pytest.raises(InputError) as error:
        call()
    assert all(word in str(error.value) for word in words)


def test_mat_is_read_by_field_name(tmp_path):
    people = {1040410: {"gender": "male", "bag": "handbag", "upper": "cardiga"}, 2040410: {"gender": "unknown"}}
    path = write_mat(tmp_path / "a.mat", people, {30505: {"age": "old"}})
    # Fields lie in another order than the groups, a value `unknown` and a group without a yes are left out.
    assert read_qut_mat(path) == {1040410: people[1040410], 2040410: {}, 30505: {"age": "old"}}


def test_mat_with_capitals_and_numbers_for_identities(tmp_path):
    path = write_mat(tmp_path / "a.mat", {7: {"head": "neckless"}}, {8: {}})
    halves = scipy.io.loadmat(path, simplify_cells=True)["qut_attribute"]
    for half, pid in (("train", 7.0), ("test", "P0008T00000A0")):
        halves[half] = {name.upper(): value for name, value in halves[half].items()} | {"IMAGE_INDEX": pid}
    scipy.io.savemat(path, {"qut_attribute": halves})
    assert read_qut_mat(path) == {7: {"head": "neckless"}, 8000000: {}}


def test_two_values_at_once_name_file_identity_and_group(tmp_path):
    path = write_mat(tmp_path / "a.mat", {7: {"bag": "normal"}, 8: {"bag": "hand"}}, {9: {}})
    halves = scipy.io.loadmat(path, simplify_cells=True)["qut_attribute"]
    halves["train"]["bagmarket"] = np.array([2, 1])
    scipy.io.savemat(path, {"qut_attribute": halves})
    with pytest.raises(InputError, match=r"a\.mat: identity 7 has 2 values of 'bag' at once: normal, market"):
        read_qut_mat(path)


def test_bad_mat_files(tmp_path):
    (tmp_path / "text.mat").write_text("no matrix")
    with pytest.raises(InputError, match=r"text\.mat: not a readable \.mat file"):
        read_qut_mat(tmp_path / "text.mat")
    scipy.io.savemat(tmp_path / "other.mat", {"market_attribute": 1})
    with pytest.raises(InputError, match="expected a struct qut_attribute"):
        read_qut_mat(tmp_path / "other.mat")
    scipy.io.savemat(tmp_path / "half.mat", {"qut_attribute": {"train": {"image_index": [1], "gendermal": [2]}}})
    with pytest.raises(InputError, match=r"'gendermale' missing \(did you mean gendermal\?\)"):
        read_qut_mat(tmp_path / "half.mat")


def damaged(path, change) -> str:
    """Return what is said of a good file in which `change` altered the fields of the training half."""
    write_mat(path, {7: {"bag": "normal"}, 8: {"bag": "hand"}}, {9: {"age": "old"}})
    halves = scipy.io.loadmat(path, simplify_cells=True)["qut_attribute"]
    change(halves)
    scipy.io.savemat(path, {"qut_attribute": halves})
    with pytest.raises(InputError) as error:
        read_qut_mat(path)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda halves: halves["train"].update(ageold=np.array([1, 1, 2])),
            "field 'ageold' has 3 values for the 2 identities of image_index; it needs one for each",
        ),
        (
            lambda halves: halves["train"].update(ageold=np.ones((2, 2))),
            "field 'ageold' has 4 values for the 2 identities",
        ),
        (
            lambda halves: halves["train"].update(ageold=np.array(["no", "yes"], dtype=object)),
            "field 'ageold' holds other than numbers; write 1 for no, 2 for yes",
        ),
        (
            lambda halves: halves["train"].update(image_index=np.array(["P0001T04041A0", "none"], dtype=object)),
            "image_index 'none' is no identity; it should be like P0001T04041A0",
        ),
        (lambda halves: halves["train"].pop("image_index"), "lacks the field image_index"),
        (lambda halves: halves["train"].pop("bagmarket"), "attribute field 'bagmarket' missing"),
        (lambda halves: halves.update(test=3), "qut_attribute.test is no struct"),
        (
            lambda halves: [half.update(zeros_and_ones(half)) for half in halves.values()],
            "no field says yes for any identity; write 1 for no and 2 for yes",
        ),
    ],
)
def test_damaged_mat_files_name_the_field(tmp_path, change, words):
    line = damaged(tmp_path / "a.mat", change)
    assert line.startswith(f"{tmp_path / 'a.mat'}: ")
    assert words in line


def zeros_and_ones(half: dict) -> dict:
    return {name: column - 1 for name, column in half.items() if name != "image_index"}


def test_attributes_are_chosen_by_name_and_kind():
    every = AttributeSchema({name: ("a", "b") for names in CP2108_KINDS.values() for name in names})
    assert choose(every) == choose(every, []) == every
    assert choose(every, ["View", "appearance", "Feet"]).names == ("View", *CP2108_APPEARANCE)
    assert choose(SCHEMA, ["bag"]).groups == {"bag": SCHEMA.groups["bag"]}
    with pytest.raises(InputError, match=r"attribute 'bagg' unknown \(did you mean bag\?\)"):
        choose(SCHEMA, ["bagg"])


def test_an_attribute_called_like_a_kind_stays_itself():
    assert expand_kinds(["appearance", "hair", "hair"], ["appearance"]) == ("appearance", "hair")
