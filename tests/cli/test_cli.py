"""The command itself: help, and the one line for what cannot be done."""

import argparse
import re
import subprocess
import sys

import pytest
from conftest import assert_one_line

from agreid_plugin.cli.main import COMMANDS, build_parser
from agreid_plugin.errors import InputError
from agreid_plugin.host import input_error_in


def test_config_file_that_does_not_exist(fastreid_command):
    assert_one_line(fastreid_command("train", "--config", "nope.yml"), "config file nope.yml does not exist")


def test_misspelt_key(fastreid_command, config_file):
    config_file.write_text(config_file.read_text() + "MODLE: {DEVICE: cpu}\n")
    outcome = fastreid_command("train", "--config", config_file)
    assert_one_line(outcome, str(config_file), "key MODLE unknown (did you mean MODEL?)")


def test_dataset_that_does_not_exist(fastreid_command, config_file, tmp_path):
    train = ["train", "--config", config_file, "--output", tmp_path / "run"]
    assert_one_line(
        fastreid_command(*train, "DATASETS.ROOT", tmp_path / "no"), "dataset Market1501 cannot be read", "no"
    )


def test_more_gpus_than_there_are(fastreid_command, config_file, tmp_path):
    outcome = fastreid_command("train", "--config", config_file, "--output", tmp_path / "run", "--num-gpus", 64)
    assert_one_line(outcome, "--num-gpus 64, but this machine has", "--num-processes")


def test_output_folder_that_cannot_be_written(fastreid_command, config_file, tmp_path):
    (tmp_path / "file").write_text("kept")
    outcome = fastreid_command("train", "--config", config_file, "--output", tmp_path / "file" / "run")
    assert_one_line(outcome, "output folder", "cannot be written")
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["trian"], ["'trian' unknown (did you mean train?)"]),
        (["train"], ["--config", "see 'fastreid train --help'"]),
        (["list", "dataset"], ["did you mean datasets?"]),
        (["train", "--config", "a.yml", "--num-gpus", "zero"], ["--num-gpus", "zero"]),
        (["train", "--config", "a.yml", "--num-gpus", "0"], ["--num-gpus is 0"]),
        (["train", "--config", "a.yml", "--num-machines", "2"], ["--num-machines needs --dist-url"]),
        (["train", "--config", "a.yml", "--machine-rank", "1"], ["--machine-rank is 1, but must be 0 to 0"]),
        (["train", "--config", "a.yml", "--gpus", "1"], ["unrecognized arguments: --gpus"]),
        (
            ["train", "--config", "a.yml", "A.B", "1", "--num-processes", "2", "C.D", "2"],
            ["C.D 2: put all KEY VALUE pairs together, after the options", "see 'fastreid train --help'"],
        ),
        (["train", "--config", "a.yml", "A.B", "1", "--gpus", "2", "C.D", "2"], ["unrecognized arguments: --gpus"]),
        (["list", "keys", "heads"], ["unrecognized arguments: heads; see 'fastreid --help'"]),
        (["train", "--config", "a.yml", "--launcher", "slurm"], ["--launcher slurm: SLURM_PROCID is not set"]),
        (["train", "--config", "a.py", "--launcher", "slrm"], ["'slrm' unknown (did you mean slurm?)"]),
        (["train", "--config", "a.py"], ["config file a.py does not exist"]),
        (["list", "hooks"], ["fastreid has no hooks; it has: architectures"]),
        (["list", "keys", "--host", "mmengine"], ["keys are of fast-reid's configurations: add --host fastreid"]),
        ([], ["COMMAND"]),
    ],
)
def test_arguments_that_make_no_sense(fastreid_command, argv, words):
    assert_one_line(fastreid_command(*argv), *words)


def test_evaluation_without_weights(fastreid_command, config_file):
    assert_one_line(fastreid_command("eval", "--config", config_file), "weight file", "--weights")


def test_a_command_builds_its_own_parser_and_an_unknown_one_all():
    def commands(word: str) -> list[str]:
        return list(next(a for a in build_parser(word)._subparsers._group_actions).choices)

    every = [command for added in COMMANDS.values() for command in added]
    assert commands("") == commands("trian") == commands("--help") == every
    for added in COMMANDS.values():
        for command in added:
            assert commands(command) == list(added)


def test_help_of_every_command_has_text():
    commands = next(a for a in build_parser()._subparsers._group_actions).choices
    assert {"train", "eval", "explain", "list", "doctor"} <= set(commands)
    assert "examples:" in commands["train"].format_help()
    for name in ("extract", "index", "search"):
        for parser in (commands[name], *parts_of(commands[name])):
            assert "examples:\n  fastreid " in parser.format_help(), parser.prog


def test_every_command_and_option_is_explained_with_its_default():
    parsers = [build_parser()]
    for parser in parsers:
        parsers += parts_of(parser)
        assert parser.description, parser.prog
        for option in parser._actions:
            if isinstance(option, argparse._SubParsersAction):
                continue
            assert option.help, (parser.prog, option.dest)
            told = option.default in (None, False, "", argparse.SUPPRESS) or option.default == []
            assert told or "default" in option.help, (parser.prog, option.dest)
    assert len(parsers) > 25


def parts_of(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    groups = parser._subparsers._group_actions if parser._subparsers else []
    return [part for group in groups for part in group.choices.values()]


def test_doctor_finds_a_sound_installation(fastreid_command):
    outcome = fastreid_command("doctor", "--verbose")
    assert outcome.code == 0
    assert "FAIL" not in outcome.out
    assert outcome.out.count("changes the weights") == 2  # in either host
    assert outcome.out.count("trained a tiny ViSA on AG-Synth for 16 steps: loss") == 2


def test_list_shows_the_hosts_parts_and_our_keys(fastreid_command):
    out = fastreid_command("list").out
    for word in (
        "Baseline",
        "build_vit_backbone",
        "EmbeddingHead",
        "Market1501",
        "TripletLoss",
        "SOLVER.LEARNING_GUARD",
    ):
        assert word in out
    assert "Market1501" not in fastreid_command("list", "keys").out


def test_list_of_a_kind_names_owners_and_says_what_things_are(fastreid_command):
    rows = [line.split(maxsplit=2) for line in fastreid_command("list", "losses").out.splitlines()]
    assert rows[0] == ["losses:"]
    owners = {row[0]: row[1] for row in rows[1:]}
    assert owners["VIAL"] == "agreid_plugin"
    assert {owners[name] for name in ("CrossEntropyLoss", "TripletLoss", "CircleLoss", "Cosface")} == {"fast-reid"}
    sentences = {row[0]: row[2] for row in rows[1:] if len(row) > 2}
    assert sentences["TripletLoss"].endswith("(ViSA, Eq. 15).")
    samplers = fastreid_command("list", "samplers").out
    assert re.search(
        r"NaiveIdentitySampler +fast-reid +Randomly sample N identities, .* batch size is N\*K\.\n", samplers
    )
    assert re.search(r"ViewBalancedIdentitySampler +agreid_plugin +Draws batches of P identities", samplers)
    transforms = fastreid_command("list", "transforms").out
    assert re.search(r"PLRM +agreid_plugin +Rotates patches", transforms)
    assert re.search(r"PadCrop +fast-reid +Pad the given image .* Crop the given image", transforms)


def test_list_of_the_other_host(fastreid_command):
    rows = fastreid_command("list", "hooks", "--host", "mmengine").out
    assert re.search(r"agreid_plugin\.LearningGuard +agreid_plugin +Stops a run that learns nothing", rows)
    assert re.search(r"EMAHook +mmengine +A Hook to apply", rows)
    everything = fastreid_command("list", "--host", "mmengine").out
    for word in ("agreid_plugin.TAGCLIP", "agreid_plugin.VIAL", "agreid_plugin.PLRM", "CARGO", "MultiProtocolMetric"):
        assert word in everything
    assert "keys:" not in everything


def test_list_of_components_is_by_kind_and_owner(fastreid_command, monkeypatch):
    """Parts that other packages register stand under the name of their package."""
    from fastreid.modeling.heads import REID_HEADS_REGISTRY

    from agreid_plugin.hosts.fastreid.data import transforms
    from agreid_plugin.hosts.fastreid.models import losses

    class TheirPart:
        """Theirs. And more of it."""

    TheirPart.__module__ = "their_package.parts"
    monkeypatch.setitem(REID_HEADS_REGISTRY._obj_map, "TheirHead", TheirPart)
    monkeypatch.setitem(losses.LOSSES, "TheirLoss", losses.LossEntry("theirs", "NONE", TheirPart))
    monkeypatch.setitem(transforms.TRANSFORMS, "TheirTransform", None)  # so that it is taken out again
    transforms.register("TheirTransform")(TheirPart)

    owned = owned_components(fastreid_command("list", "components").out)
    assert set(owned) == {"architectures", "backbones", "heads", "losses", "transforms", "samplers", "datasets"}
    for kind, name in (("heads", "TheirHead"), ("losses", "TheirLoss"), ("transforms", "TheirTransform")):
        assert owned[kind]["their_package"] == {name: "Theirs."}
    assert owned["architectures"]["agreid_plugin"].keys() >= {"ViSA", "VDT", "VIF"}
    assert owned["architectures"]["fast-reid"].keys() >= {"Baseline", "MGN", "MoCo", "Distiller"}
    assert "Market1501" in owned["datasets"]["fast-reid"]
    assert "CARGO_A2G" in owned["datasets"]["agreid_plugin"]
    assert set(owned["samplers"]["agreid_plugin"]) == {"SetReWeightSampler", "ViewBalancedIdentitySampler"}


def owned_components(out: str) -> dict[str, dict[str, dict[str, str]]]:
    """Read kind -> owner -> name -> sentence from what is printed."""
    found = {}
    for line in out.splitlines():
        depth = len(line) - len(line.lstrip())
        if depth == 0:
            owners = found[line.rstrip(":")] = {}
        elif depth == 2:
            names = owners[line.strip().rstrip(":")] = {}
        else:
            name, _, sentence = line.strip().partition("  ")
            names[name] = sentence.strip()
    return found


def test_module_is_the_same_command():
    result = subprocess.run([sys.executable, "-m", "agreid_plugin", "--version"], capture_output=True, text=True)
    assert result.stdout.startswith("agreid-plugin ")


def test_an_error_from_a_worker_is_found_in_its_traceback():
    caught = InputError(
        "Caught InputError in DataLoader worker process 0.\nTraceback ...\nx.InputError: image a.jpg is bad\n"
    )
    assert input_error_in(caught) == "image a.jpg is bad"
    assert input_error_in(InputError("plain")) == "plain"
    assert input_error_in(RuntimeError("boom")) is None
