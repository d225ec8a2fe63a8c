"""Complaints about input: one line, whatever is in them."""

import math
import pickle
import re
from urllib.error import HTTPError

import pytest

from agreid_plugin.errors import (
    InputError,
    did_you_mean,
    input_error_like,
    printable,
    require_given,
    require_known,
    require_within,
    unknown,
)


def test_line_breaks_become_spaces():
    assert str(InputError("file /data/a\nb.json\r\nis missing")) == "file /data/a b.json is missing"


def test_what_would_steer_a_terminal_is_spelled_out_and_there_is_an_end():
    assert str(InputError("a\x1b[2Jb is missing")) == r"a\x1b[2Jb is missing"
    assert str(InputError("a" * 900 + "b" * 9000 + "c" * 900)) == f"{'a' * 900}{'b' * 100} ... {'b' * 100}{'c' * 900}"


def test_names_are_spelled_out_in_one_line():
    assert printable("a\nb\x1b[2Jc\udcff é 红") == r"a\nb\x1b[2Jc\udcff é 红"


def test_an_error_of_another_process_says_the_same():
    assert str(pickle.loads(pickle.dumps(InputError("batch is 3")))) == "batch is 3"


def test_the_nearest_name_whatever_its_case():
    for given in ("cargo", "cargoo"):
        assert did_you_mean(given, ["CARGO", "LAGPeR"]) == " (did you mean CARGO?)"
    assert did_you_mean("Marekt1501", ["Market1501"]) == " (did you mean Market1501?)"
    assert did_you_mean("xyz", ["CARGO", "LAGPeR"]) == ""


def test_an_unknown_name_is_told_with_those_that_exist():
    error = unknown("dataset", "CARG", ["LAGPeR", "CARGO"])
    assert isinstance(error, InputError)
    assert str(error) == "dataset 'CARG' unknown (did you mean CARGO?); known: CARGO, LAGPeR"


def test_many_known_names_are_cut():
    known = [f"name{number:02d}" for number in range(30)]
    assert str(unknown("key", "name7", known)).endswith("name19, ... (30 in all)")


def test_a_number_within_bounds_comes_back_and_another_is_refused():
    assert require_within("share", 0.5, 0, 1) == 0.5
    assert require_within("weight", 0, 0, math.inf) == 0
    for value in (-0.1, 1.5, math.nan, "half", None):
        with pytest.raises(InputError, match=f"^share={value!r} should be between 0 and 1$"):
            require_within("share", value, 0, 1)
    with pytest.raises(InputError, match=r"^weight=inf should be 0 or more$"):
        require_within("weight", math.inf, 0, math.inf)


def test_a_known_name_comes_back_and_another_is_refused():
    assert require_known("neck", "after", ("before", "after")) == "after"
    with pytest.raises(InputError, match=r"neck 'aftr' unknown \(did you mean after\?\); known: after, before"):
        require_known("neck", "aftr", ("before", "after"))


@pytest.mark.parametrize("value", [None, 3, ["after"]])
def test_a_value_that_is_no_text_is_refused_as_it_is(value):
    with pytest.raises(InputError, match=re.escape(f"neck {value!r} unknown")):
        require_known("neck", value, ("before", "after"))


def test_what_is_needed_comes_back_however_empty_and_none_is_asked_for_by_name():
    assert require_given("labels", []) == []
    with pytest.raises(InputError, match=r"^views=None should be given$"):
        require_given("views", None)


def test_bad_input_can_be_caught_as_what_it_was():
    for error in (EOFError("a"), KeyError("a"), OSError(2, "a"), HTTPError("u", 404, "gone", None, None)):
        found = input_error_like(error, "one\nline")
        assert isinstance(found, InputError)
        assert isinstance(found, type(error))
        assert str(found) == "one line"
        assert str(pickle.loads(pickle.dumps(found))) == "one line"
    assert input_error_like(HTTPError("u", 404, "gone", None, None), "x").code == 404
    assert type(input_error_like(UnicodeDecodeError("utf-8", b"a", 0, 1, "why"), "x")) is InputError
