"""`fastreid doctor`: datasets, weight files, disk space, host fixes, a training of seconds."""

import json
import re
import shutil
from collections import namedtuple

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from agreid_plugin.cli.doctor import disk_space, train_briefly
from agreid_plugin.data.datasets import DATASETS
from agreid_plugin.data.datasets.locations import find_datasets
from agreid_plugin.engine.smoke import SmokeResult
from agreid_plugin.inference import weights

WEIGHTS = {"a": torch.ones(2, 3), "b": torch.zeros(4)}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FASTREID_DATASETS", raising=False)
    monkeypatch.delenv("FASTREID_WEIGHTS", raising=False)


def test_weight_files_are_described(tmp_path, monkeypatch):
    torch.save({"model": WEIGHTS}, "plain.pth")
    save_file(WEIGHTS, "plain.safetensors")
    np.savez("plain.npz", **{name: value.numpy() for name, value in WEIGHTS.items()})
    torch.jit.script(nn.Linear(2, 2)).save("script.pt")
    found = weights.describe_files(["plain.pth", "plain.safetensors", "plain.npz", "script.pt"])
    assert all(finding.ok for finding in found)
    formats = ("torch, 2", "safetensors, 2", "npz, 2", "TorchScript, 2")
    for finding, format_ in zip(found, formats, strict=True):
        assert f"not known by its hash; {format_} tensors, " in finding.text
    assert "1e-05 M numbers" in found[0].text
    digest = weights.sha256(tmp_path / "plain.pth")
    monkeypatch.setattr(weights, "known_files", lambda: {digest: "the file of this test"})
    (finding,) = weights.describe_files(["plain.pth"])
    assert finding.text == f"plain.pth: the file of this test; torch, 2 tensors, 1e-05 M numbers; sha256 {digest[:12]}"


def test_a_hash_in_a_name_is_compared(tmp_path):
    torch.save(WEIGHTS, "plain.pth")
    digest = weights.sha256(tmp_path / "plain.pth")
    assert not digest[:16].isdecimal()
    for name, ok, words in (
        (f"net-{digest[:16]}.pth", True, "as its name says"),
        (
            "net-deadbeef.pth",
            False,
            f"its name says sha256 deadbeef, its content has {digest[:8]}: damaged, or another",
        ),
        ("net-20260101.pth", True, "not known by its hash"),  # a date
    ):
        shutil.copy("plain.pth", name)
        (finding,) = weights.describe_files([name])
        assert (finding.ok, words in finding.text) == (ok, True), finding


def test_weight_files_that_cannot_be_read():
    with open("cut.pth", "wb") as file:
        file.write(b"PK\x03\x04 cut")
    cut, gone = weights.describe_files(["cut.pth", "gone.pth"])
    assert not cut.ok
    assert not gone.ok
    assert "cut.pth" in cut.text
    assert gone.text == "weight file gone.pth does not exist"


def test_weight_files_are_found(tmp_path, monkeypatch):
    for folder in ("weights", "pretrained", "mine"):
        (tmp_path / folder).mkdir()
        torch.save(WEIGHTS, tmp_path / folder / f"{folder}.pth")
        (tmp_path / folder / "notes.txt").touch()
    monkeypatch.setenv("FASTREID_WEIGHTS", str(tmp_path / "mine"))
    assert sorted(path.name for path in weights.find_files()) == ["mine.pth", "pretrained.pth", "weights.pth"]


def test_known_hashes_are_hashes():
    assert all(len(digest) == 64 and int(digest, 16) for digest in weights.known_files())
    assert "CLIP ViT-B/16 of OpenAI" in weights.known_files().values()


def test_datasets_are_found_and_counted(agsynth, tmp_path, monkeypatch):
    (tmp_path / "root" / "reid" / "ag_reid_v2" / "train").mkdir(parents=True)
    (tmp_path / "root" / "reid" / "ag_reid_v2" / "train" / "a.JPG").touch()
    found = find_datasets([str(agsynth), str(tmp_path / "root"), "nowhere"])
    assert found["CARGO (AG-Synth)"] == f"96 images in {agsynth / 'CARGO'}"
    assert found["AG-ReID.v2"] == f"1 images in {tmp_path / 'root' / 'reid' / 'ag_reid_v2'}"
    assert found["nowhere"] == "no such folder"
    missing = found["not here"].split(", ")
    assert "LAGPeR" in missing
    assert len(missing) == sum(bool(source.folders) for source in DATASETS.values()) - 2
    monkeypatch.setenv("FASTREID_DATASETS", str(agsynth / "CARGO"))  # the dataset's own folder
    assert "CARGO (AG-Synth)" in find_datasets()


def test_little_room_is_a_warning(monkeypatch):
    assert all(finding.ok for finding in disk_space("logs/none/yet"))
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(4.2e9))
    output, temporary, *_ = disk_space("logs")
    assert (output.ok, output.warns, temporary.warns) == (True, True, False)
    assert output.text == "4.2 GB free for output (logs): less than 5 GB, a run may end for want of space"


def test_doctor_tells_it_all(fastreid_command, agsynth):
    torch.save(WEIGHTS, "net-deadbeef.pth")
    outcome = fastreid_command("doctor", "--quick", "--root", agsynth, "--weights", "net-deadbeef.pth")
    assert outcome.code == 1
    assert "  FAIL  net-deadbeef.pth: its name says" in outcome.out
    assert f"  CARGO (AG-Synth)  96 images in {agsynth / 'CARGO'}" in outcome.out
    assert "tiny ViSA" not in outcome.out
    first, *lines = outcome.out.splitlines()
    assert re.fullmatch(r"FAIL: \d+ checks, 1 failed, \d with a warning", first)
    assert lines[-3] == "host fixes:"
    assert re.fullmatch(r"  fast-reid  [23]\d applied, 0 armed for modules that were not imported", lines[-2])


def test_doctor_lists_host_fixes(fastreid_command):
    outcome = fastreid_command("doctor", "--quick", "--verbose")
    assert outcome.code == 0
    assert re.match(r"ok: \d+ checks, 0 failed", outcome.out)
    applied = outcome.out.partition("host fixes of fast-reid, applied:\n")[2]
    assert re.search(r"  optimizer_without_flat_buffer +zero_grad\(\) of torch >= 2 drops", applied)
    assert "  numpy_in1d" in applied.partition("host fixes of mmengine, applied:\n")[2]


def test_doctor_for_machines(fastreid_command):
    outcome = fastreid_command("doctor", "--quick", "--json")
    report = json.loads(outcome.out)
    assert outcome.code == 0
    assert {"versions", "devices", "host_fixes", "datasets", "weights", "disk", "checks"} <= set(report)
    assert all(check["ok"] for check in report["checks"])


def test_a_training_that_fails_or_learns_nothing_is_a_finding():
    def fails(root, output):
        raise RuntimeError("no such kernel\nand more")

    def stalls(root, output):
        assert (root / "CARGO").is_dir()
        return SmokeResult([2.0, 2.1, 2.0, 2.1], 5, [0.1])

    broken, still = train_briefly({"one": fails, "other": stalls})
    assert broken.text == "one cannot train a tiny ViSA on AG-Synth: RuntimeError: no such kernel"
    assert not broken.ok
    assert not still.ok
    assert "loss 2.00 to 2.10" in still.text
    assert train_briefly({}) == []
