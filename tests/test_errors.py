"""Complaints about input: one line, whatever is in them."""

import pickle

import pytest

from agreid_plugin.errors import InputError, did_you_mean, require_given, require_known, unknown


def test_line_breaks_become_spaces():
    assert str(InputError("file /data/a\nb.json\r\nis missing")) == "file /data/a b.json is missing"


def test_an_error_of_another_process_says_the_same():
    assert str(pickle.loads(pickle.dumps(InputError("batch is 3")))) == "batch is 3"


def test_the_nearest_name_whatever_its_case():
    assert did_you_mean("cargoo", ["CARGO", "LAGPeR"]) == " (did you mean CARGO?)"
    assert did_you_mean("xyz", ["CARGO", "LAGPeR"]) == ""


def test_many_known_names_are_cut():
    known = [f"name{number:02d}" for number in range(30)]
    assert str(unknown("key", "name7", known)).endswith("name19, ... (30 in all)")


def test_a_known_name_comes_back_and_another_is_refused():
    assert require_known("neck", "after", ("before", "after")) == "after"
    with pytest.raises(InputError, match=r"neck 'aftr' unknown \(did you mean after\?\); known: after, before"):
        require_known("neck", "aftr", ("before", "after"))


def test_what_is_needed_comes_back_however_empty_and_none_is_asked_for_by_name():
    assert require_given("labels", []) == []
    with pytest.raises(InputError, match=r"^views=None should be given$"):
        require_given("views", None)
