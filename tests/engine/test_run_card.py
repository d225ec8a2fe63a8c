"""run_card.json: what it holds, when it is written, and what is refused when it is read."""

import hashlib
import json
import subprocess
import sys

import pytest
import torch

from agreid_plugin import __version__
from agreid_plugin.engine.run_card import (
    PACKAGES,
    Card,
    code_version,
    devices,
    trace_recipe,
    versions,
    weight_files,
)
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.results import find_run_card, read_run_card


def begin(folder, **changes) -> Card:
    facts = {"host": "fast-reid", "task": "train", "processes": 2, "seed": 7, "host_fixes": {"x": "a reason"}}
    return Card(folder, **{"config": {"a": [1]}, **facts, **changes})


def test_a_card_has_what_the_run_was_made_of(tmp_path):
    card = begin(tmp_path, datasets={"CARGO": "abc"})
    assert card.path == tmp_path / "run_card.json"
    found = read_run_card(tmp_path)
    assert found == json.loads(card.path.read_text())
    assert (found["config"], found["datasets"]) == ({"a": [1]}, {"CARGO": "abc"})
    assert (found["processes"], found["seed"], found["host_fixes"]) == (2, 7, {"x": "a reason"})
    assert (found["versions"], found["devices"], found["code"]) == (versions(), devices(), code_version())
    (session,) = found["sessions"]
    assert session["started"].endswith("+00:00")
    assert (session["ended"], session["outcome"], session["command"]) == (None, "running", sys.argv)


def test_what_a_run_costs_is_added_while_it_runs_and_at_its_end(tmp_path):
    card = begin(tmp_path)
    card.images += 10
    card.update()
    (session,) = read_run_card(tmp_path)["sessions"]
    assert (session["images"], session["outcome"], session["ended"]) == (10, "running", None)
    card.images += 10
    card.end()
    (session,) = read_run_card(tmp_path)["sessions"]
    assert (session["images"], session["outcome"]) == (20, "finished")
    assert session["wall_seconds"] > 0
    assert session["images_per_second"] > 0
    assert session["device_hours"] == pytest.approx(2 * session["wall_seconds"] / 3600, abs=1e-5)
    assert session["peak_memory_mb"] > 10


def test_the_error_that_ended_a_run_is_told_and_goes_on(tmp_path):
    with pytest.raises(ZeroDivisionError), begin(tmp_path):
        raise ZeroDivisionError
    (session,) = read_run_card(tmp_path)["sessions"]
    assert (session["outcome"], session["ended"] is None) == ("ZeroDivisionError", False)


def test_a_resumed_run_keeps_its_sessions_and_another_run_does_not(tmp_path):
    begin(tmp_path).end()
    begin(tmp_path, resumed=True, seed=8)
    card = read_run_card(tmp_path)
    assert [session["outcome"] for session in card["sessions"]] == ["finished", "running"]
    assert card["seed"] == 8
    begin(tmp_path)
    assert len(read_run_card(tmp_path)["sessions"]) == 1


def test_nothing_but_the_card_is_left_in_the_folder(tmp_path):
    begin(tmp_path).end()
    assert [path.name for path in tmp_path.iterdir()] == ["run_card.json"]


def test_a_card_is_found_by_the_run_and_by_any_file_of_it(tmp_path):
    (tmp_path / "run").mkdir()
    begin(tmp_path / "run")
    (tmp_path / "run" / "results.json").touch()
    for place in ("run", "run/results.json", "run/run_card.json"):
        assert read_run_card(tmp_path / place)["seed"] == 7
    assert find_run_card(tmp_path) is None
    with pytest.raises(InputError, match=r"has no run_card\.json"):
        read_run_card(tmp_path)
    with pytest.raises(InputError, match=r"rum does not exist.*did you mean run"):
        read_run_card(tmp_path / "rum")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"versions": {', "not JSON"),
        ("[]", "expected a dict"),
        ("{}", "damaged"),
        ('{"versions": {}, "host_fixes": [], "devices": [], "processes": 1, "config": {}}', "host_fixes is []"),
        ('{"versions": {}, "host_fixes": {}, "devices": [], "processes": 1, "config": {}, "batch": 3}', "batch is 3"),
    ],
)
def test_a_damaged_card_is_refused_in_one_line(tmp_path, text, said):
    (tmp_path / "run_card.json").write_text(text)
    with pytest.raises(InputError, match=r"run_card\.json") as error:
        read_run_card(tmp_path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_versions_are_those_installed():
    found = versions()
    assert list(found) == ["python", *PACKAGES]
    assert found["torch"] == torch.__version__
    assert found["python"] == sys.version.split()[0]


def test_a_package_that_is_not_installed_is_missing(monkeypatch):
    monkeypatch.setattr("agreid_plugin.engine.run_card.PACKAGES", ("no-such-package-anywhere",))
    assert versions()["no-such-package-anywhere"] == "missing"


def git(folder, *arguments):
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(["git", "-C", folder, *who, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_code_of_a_checkout_is_told_by_commit_and_changes(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "module.py").write_text("a = 1\n")
    assert code_version(package) == {"version": __version__, "commit": None, "dirty": None, "changes": None}
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert code_version(package) == {"version": __version__, "commit": commit, "dirty": False, "changes": None}
    seen = set()
    for value in (2, 3):
        (package / "module.py").write_text(f"a = {value}\n")
        found = code_version(package)
        assert (found["commit"], found["dirty"]) == (commit, True)
        seen.add(found["changes"])
    assert len(seen) == 2


def test_weight_files_are_told_by_what_they_hold(tmp_path):
    path = tmp_path / "vit.pth"
    path.write_bytes(b"weights")
    found = weight_files(initial=path, pretrained=tmp_path / "gone.pth", evaluated="", features=None)
    digest = hashlib.sha256(b"weights").hexdigest()
    assert found == {"initial": {"path": str(path), "sha256": digest, "bytes": 7}}


def test_the_recipe_of_a_runs_own_copy_is_the_one_it_was_made_by(tmp_path):
    recipe = tmp_path / "projects" / "ViSA" / "cargo.yml"
    assert trace_recipe("") == ""
    assert trace_recipe(recipe) == str(recipe)
    run = tmp_path / "run"
    run.mkdir()
    begin(run, config_file=recipe)
    assert trace_recipe(run / "config.yaml") == str(recipe)
