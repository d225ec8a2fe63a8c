"""`KEY VALUE ...` of a command line, read alike for both hosts."""

import pytest

from agreid_plugin.engine.configuration import is_below, literal, pairs
from agreid_plugin.errors import InputError

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
        ("yes", "yes"),
        ("[a", "[a"),
        ("[0-9]+_(?P<pid>[0-9]+)", "[0-9]+_(?P<pid>[0-9]+)"),
        ("{a: 1, a: 2}", "{a: 1, a: 2}"),
        ("!!python/name:os.system", "!!python/name:os.system"),
    ],
)
def test_a_text_that_is_no_value_stays_text(text, value):
    assert literal(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[CrossEntropyLoss, NormLoss]", ["CrossEntropyLoss", "NormLoss"]),
        ("[[head, 10], ['body', 0.5]]", [["head", 10], ["body", 0.5]]),
        ("{type: Adam, lr: 0.1}", {"type": "Adam", "lr": 0.1}),
        ("true", True),
        ("null", None),
    ],
)
def test_values_are_taken_as_a_recipe_writes_them(text, value):
    assert literal(text) == value


@pytest.mark.both_hosts
def test_both_hosts_take_lists_of_names(tmp_path):
    from agreid_plugin.hosts.fastreid.config.loading import load_config as fastreid
    from agreid_plugin.hosts.mmengine.config.loading import load_config as mmengine

    recipe, program = tmp_path / "a.yml", tmp_path / "a.py"
    recipe.write_text("{}")
    program.write_text("default_scope = 'agreid_plugin'\n")
    losses = "[CrossEntropyLoss, VIAL]"
    assert fastreid(recipe, ["MODEL.LOSSES.NAME", losses]).MODEL.LOSSES.NAME == ("CrossEntropyLoss", "VIAL")
    assert mmengine(program, ["activation_checkpointing", "[vit, head]"]).activation_checkpointing == ["vit", "head"]


def test_a_parameter_is_below_its_modules():
    assert [is_below("head.norm.bias", name) for name in ("head", "head.norm", "head.norm.bias")] == [True] * 3
    assert not any(is_below("head.norm.bias", name) for name in ("hea", "norm", "head.nor"))
