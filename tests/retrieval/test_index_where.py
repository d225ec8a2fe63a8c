"""What an index keeps of images and how it is asked: refused values, times, quoting, and names of chunks."""

import numpy as np
import pytest

from agreid_plugin.errors import InputError
from agreid_plugin.retrieval.index import Chunk, Entry, Where, parse_time
from agreid_plugin.types import UNKNOWN, Record, View


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"path": ""}, "path '' should have 1 to 4096 bytes"),
        ({"path": "a\nb"}, r"path 'a\\nb' should have .* none of them a control character"),
        ({"path": "ü" * 3000}, "should have 1 to 4096 bytes"),
        ({"path": "a", "camera": -2}, "a: camera -2 should be a number from 0 to 2147483647, or -1"),
        ({"path": "a", "camera": 2**31}, "a: camera 2147483648"),
        ({"path": "a", "pid": 1.5}, "a: pid 1.5 should be a number"),
        ({"path": "a", "time": float("nan")}, "a: time nan should be seconds since 1970, or None"),
        ({"path": "a", "tags": {'x"': "1"}}, "should be named with letters, digits, _, - or ."),
        ({"path": "a", "tags": {"x": 1}}, "a: tag x is 1, but should be text in one line"),
    ],
)
def test_what_cannot_be_kept_is_refused(values, words):
    with pytest.raises(InputError, match=words):
        Entry(**values)


def test_entries_come_back_from_their_fields_and_of_records():
    entry = Entry("a", View.GROUND, np.int64(3), 5, "UAV", 7, {"b": "1", "a": "ü"})
    assert entry.fields == ("a", 1, 3, 5, "uav", 7.0, '{"a": "ü", "b": "1"}')
    assert Entry.from_fields(entry.fields) == entry
    assert Entry("a").fields == ("a", UNKNOWN, UNKNOWN, UNKNOWN, "", None, "{}")
    record = Record("p.jpg", 9, 2, View.AERIAL, "UAV", tags={"scene": "3"})
    assert Entry.from_record(record, 5.0) == Entry("p.jpg", View.AERIAL, 2, 9, "uav", 5.0, {"scene": "3"})


def test_conditions_of_milvus():
    where = Where(view=View.GROUND, cameras=(3,), before=5.0, tags={"a": 'say "x" \\ ü'}, paths=("it's",))
    assert where.milvus() == (
        'view == 1 and camera in [3] and path in ["it\'s"] and time > -1e+300 and time < 5.0 '
        'and tags["a"] == "say \\"x\\" \\\\ ü"'
    )
    assert Where().milvus() == ""
    assert not Where()
    assert Where(cameras=(0,))


def test_bad_conditions_are_refused():
    with pytest.raises(InputError, match="no time is after 9 and before 5: swap them"):
        Where(after=9, before=5)
    with pytest.raises(InputError, match="filter: tag 'a b' should be named"):
        Where(tags={"a b": "1"})


def test_times_are_read_as_seconds_and_nonsense_is_refused():
    assert parse_time("1970-01-02") == 86400
    assert parse_time("1970-01-01T01:00:00+01:00") == parse_time("1970-01-01T00:00:00Z") == 0
    assert parse_time("12.5") == 12.5
    with pytest.raises(InputError, match="time 'monday' cannot be read: write 2026-05-31 or 2026-05-31T14:30"):
        parse_time("monday")
    for never in ("nan", "-inf", "1e999"):
        with pytest.raises(InputError, match="cannot be read: write 2026-05-31"):
            parse_time(never)


def test_chunks_have_names_of_their_entries():
    one, other = Chunk([Entry("a"), Entry("b")], np.eye(2)), Chunk([Entry("a"), Entry("b", camera=1)], np.eye(2))
    assert one.name == Chunk([Entry("a"), Entry("b")], lambda: np.eye(2)).name != other.name
    assert Chunk([Entry("a")], np.eye(1), key="mine").name == "mine"


def test_vectors_get_length_one_and_bad_ones_are_named():
    np.testing.assert_allclose(Chunk([Entry("a")], np.array([[3.0, 4.0]])).with_vectors().vectors, [[0.6, 0.8]])
    with pytest.raises(InputError, match="1 of 1 gallery vectors have length 0 and no direction: a"):
        Chunk([Entry("a")], np.zeros((1, 2))).with_vectors()
    with pytest.raises(InputError, match="1 of 1 gallery features have NaN, infinite or huge numbers"):
        Chunk([Entry("a")], np.array([[np.nan, 1]])).with_vectors()
