"""What two run cards differ in."""

from copy import deepcopy

import pytest

from agreid_plugin.engine.run_comparison import ABSENT, HINTS, find_differences

CARD = {
    "host": "fast-reid",
    "task": "train",
    "code": {"version": "1", "commit": "c0ffee", "dirty": False, "changes": None},
    "versions": {"python": "3.11", "torch": "2.13", "numpy": "2"},
    "host_fixes": {"a": "why", "b": "why"},
    "devices": ["cpu (2 threads)"],
    "cores": 2,
    "processes": 1,
    "seed": 0,
    "batch": {"per_process": 16, "processes": 1, "accumulation": 1, "global": 16},
    "datasets": {"AG_ReID_v2": "f00d"},
    "weights": {"pretrained": {"path": "here/vit.pth", "sha256": "abc", "bytes": 3}},
    "protocols": ["AG-ReID.v2/A2C", "AG-ReID.v2/C2A"],
    "setup": {"architecture": "ViSA", "input": [256, 128], "epochs": 120},
    "sessions": [{"started": "now", "wall_seconds": 3}],
    "config": {"SEED": 0, "OUTPUT_DIR": "a", "SOLVER": {"BASE_LR": 0.1, "STEPS": [1, 2]}, "INPUT": {}},
}


def changed(**changes) -> dict:
    return {**deepcopy(CARD), **changes}


def found(b: dict, a: dict = CARD) -> list[tuple]:
    return [(each.group, each.name, each.a, each.b) for each in find_differences(a, b)]


def test_time_folder_and_the_files_place_are_no_difference():
    elsewhere = {"pretrained": {"path": "there/other.pth", "sha256": "abc", "bytes": 3}}
    config = {**CARD["config"], "OUTPUT_DIR": "b"}
    assert found(changed(sessions=[], weights=elsewhere, config=config, protocols=CARD["protocols"][::-1])) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"protocols": ["AG-ReID.v2/A2C"]}, ("protocols", "AG-ReID.v2/C2A", "yes", ABSENT)),
        ({"datasets": {"AG_ReID_v2": "beef"}}, ("datasets", "agreidv2", "f00d", "beef")),
        (
            {"weights": {"pretrained": {"path": "here/vit.pth", "sha256": "xyz"}}},
            ("weights", "pretrained", "abc", "xyz"),
        ),
        ({"weights": {}}, ("weights", "pretrained", "abc", ABSENT)),
        ({"seed": 1}, ("seed", "seed", 0, 1)),
        ({"code": {**CARD["code"], "dirty": True}}, ("code", "dirty", False, True)),
        ({"host_fixes": {"a": "why"}}, ("host_fixes", "b", "applied", ABSENT)),
        ({"devices": ["H100"]}, ("devices", "names", ["cpu (2 threads)"], ["H100"])),
        ({"task": "eval"}, ("run", "task", "train", "eval")),
    ],
)
def test_one_thing_that_differs_is_told(changes, told):
    assert found(changed(**changes)) == [told]


def test_configuration_keys_are_told_by_their_full_names():
    config = {"SEED": 3, "OUTPUT_DIR": "b", "SOLVER": {"BASE_LR": 0.1, "STEPS": [1, 3]}, "INPUT": {"REA": True}}
    assert found(changed(config=config)) == [
        ("config", "SOLVER.STEPS", [1, 2], [1, 3]),
        ("config", "INPUT", {}, ABSENT),
        ("config", "INPUT.REA", ABSENT, True),
    ]


def test_the_most_telling_comes_first_and_torch_before_the_other_packages():
    b = changed(
        versions={"python": "3.12", "torch": "2.4", "numpy": "1"},
        seed=5,
        batch={**CARD["batch"], "global": 32},
        datasets={"AG_ReID_v2": "beef"},
    )
    assert [(each.group, each.name) for each in find_differences(CARD, b)] == [
        ("datasets", "agreidv2"),
        ("batch", "global"),
        ("seed", "seed"),
        ("versions", "torch"),
        ("versions", "python"),
        ("versions", "numpy"),
    ]
    assert list(HINTS)[:5] == ["run", "protocols", "datasets", "weights", "batch"]


def test_runs_of_two_hosts_compare_by_what_both_know():
    b = changed(
        host="mmengine",
        host_fixes={"z": "of the other host"},
        datasets={"AG-ReID.v2": "f00d"},
        config={"train_cfg": {"max_epochs": 60}},
        setup={**CARD["setup"], "epochs": 60},
    )
    assert found(b) == [("run", "host", "fast-reid", "mmengine"), ("setup", "epochs", 120, 60)]


def test_cards_of_earlier_versions_compare_by_what_they_have():
    old = {key: CARD[key] for key in ("versions", "host_fixes", "devices", "processes", "seed", "config")}
    assert found(old, old) == []
    assert ("batch", "global", ABSENT, 16) in found(CARD, old)
