import numpy as np
import pytest

from agreid_plugin.data.datasets import Dataset, Kinds
from agreid_plugin.data.protocols import Meta, Protocol, select
from agreid_plugin.data.protocols.parser import FILTERS, get_property, passes
from agreid_plugin.errors import InputError
from agreid_plugin.types import UNKNOWN, Record, View

VALUES = {
    "view": [None, View.AERIAL, View.GROUND],
    "camera": [UNKNOWN, 1, 2],
    "platform": ["", "uav", "cctv"],
    "time": ["", "day", "night"],
    "scene": ["", "yard", "hall"],
    "source": ["", "real", "synthetic"],
}


def make_record(number: int, values: dict, **others) -> Record:
    tags = {name: value for name, value in values.items() if name in ("time", "scene", "source") and value}
    return Record(
        f"{number:03}.jpg",
        view=values["view"],
        camera=values["camera"],
        platform=values["platform"],
        tags=tags,
        **others,
    )


def random_records(seed: int, count: int = 300) -> list[Record]:
    rng = np.random.default_rng(seed)
    return [
        make_record(
            number,
            {
                name: rng.choice(values) if name != "camera" else int(rng.choice(values))
                for name, values in VALUES.items()
            },
            pid=int(rng.integers(40)),
            split=str(rng.choice(["train", "query", "gallery", "test"])),
            captions=("a man",) * int(rng.integers(2)),
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("name", FILTERS)
def test_images_that_a_filter_tells_apart_are_of_two_kinds(name):
    first = {each: values[1] for each, values in VALUES.items()}
    records = [make_record(n, {**first, name: value}, pid=1) for n, value in enumerate(VALUES[name])]
    found = [get_property(record, name) for record in Kinds(records).examples]
    assert found == [get_property(record, name) for record in records]


def test_people_are_of_one_kind():
    kinds = Kinds([Record("a", 1), Record("b", 2), Record("c", 1, split="query"), Record("d", 3, captions=("a man",))])
    assert (kinds.kind.tolist(), kinds.pid.tolist()) == ([0, 0, 1, 2], [1, 2, 1, 3])
    assert kinds.places([2, 0]).tolist() == [0, 1, 3]


@pytest.mark.parametrize("kind", ["image", "text"])
@pytest.mark.parametrize("seed", range(4))
def test_a_selection_is_that_of_a_plain_loop(seed, kind):
    rng, records = np.random.default_rng(seed), random_records(seed)
    dataset = Dataset("MINE", "", tuple(records))
    for _ in range(20):
        names = rng.choice(FILTERS, 2)
        wanted = [{name: tuple(get_property(r, name) for r in rng.choice(records, 2))} for name in names]
        restrict = str(rng.choice(["", "query_in_gallery"]))
        protocol = Protocol("MINE", "any", *wanted, restrict=restrict, kind=kind, source="a test")
        splits = ("query", "gallery") if kind == "image" else ("test", "test")
        query, gallery = (
            [record for record in records if record.split == split and passes(record, side)]
            for split, side in zip(splits, wanted, strict=True)
        )
        if kind == "text":
            query = [record for record in query if record.captions]
        if restrict:
            query = [record for record in query if record.pid in {image.pid for image in gallery}]
        if not (query and gallery):
            with pytest.raises(InputError, match="none of the"):
                select(protocol, dataset)
            continue
        found = select(protocol, dataset)
        assert (found.query, found.gallery) == (query, gallery)
        for meta, side in ((found.query_meta, query), (found.gallery_meta, gallery)):
            for name, column in vars(Meta.collect(side)).items():
                np.testing.assert_array_equal(getattr(meta, name), column)
