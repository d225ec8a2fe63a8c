"""`KEY VALUE ...` of a command line, read alike for both hosts."""

import pytest

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.overrides import literal, pairs
from agreid_plugin.hosts.parameter_names import is_below

KEYS = {"folder": "work_dir", "weights": "load_from"}


def test_keys_and_values_come_in_pairs():
    assert pairs([], **KEYS) == []
    assert pairs(["a.b", "1", "c", "x=y"], **KEYS) == [("a.b", "1"), ("c", "x=y")]


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["a.b"], "command line: overrides come as KEY VALUE pairs, 'a.b' has no value"),
        (["a.b", "1", "c"], "command line: overrides come as KEY VALUE pairs, 'c' has no value"),
        (["a.b=1"], "command line: write 'a.b 1' instead of 'a.b=1'"),
        (["a.b=1", "c=2"], "command line: write 'a.b 1' instead of 'a.b=1'"),
        (["a", "1", "c=2=3", "x"], "command line: write 'c 2=3' instead of 'c=2=3'"),
        (
            ["model.pth"],
            "'model.pth' is not a KEY: --resume takes no file, it continues the run in work_dir; to start from weights "
            "write load_from model.pth",
        ),
    ],
)
def test_what_is_no_pair_is_refused(overrides, told):
    with pytest.raises(InputError) as error:
        pairs(overrides, **KEYS)
    assert str(error.value) == told


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("(64, 32)", (64, 32)),
        ("None", None),
        ("some/where", "some/where"),
        ("", ""),
        ("{[1]: 2}", "{[1]: 2}"),
    ],
)
def test_a_text_that_is_no_value_stays_text(text, value):
    assert literal(text) == value


def test_a_parameter_is_below_its_modules():
    assert [is_below("head.norm.bias", name) for name in ("head", "head.norm", "head.norm.bias")] == [True] * 3
    assert not any(is_below("head.norm.bias", name) for name in ("hea", "norm", "head.nor"))
