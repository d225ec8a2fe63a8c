"""Small files that would fill the memory, or take for ever, end in one line."""

import json
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from data import trees
from fuzz_cases import LONGEST, billion_laughs, refusal, within
from malicious import zip_bomb
from safetensors.torch import save

from agreid_plugin import trust
from agreid_plugin.cli.ablate import read_grid
from agreid_plugin.data.datasets.mat_files import MAX_BYTES, read_mat
from agreid_plugin.data.images import read_image
from agreid_plugin.data.protocols import read_protocols
from agreid_plugin.evaluation import load_features
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.mmengine.config import loading as of_mmengine
from agreid_plugin.hosts.mmengine.engine.checkpoint_reader import load_from_local
from agreid_plugin.nn.checkpoints import read_arrays, read_tensors
from agreid_plugin.nn.clip_weights import detect_quick_gelu

MOST = 300  # megabytes; each of these files asks for gigabytes
LAUGHS = billion_laughs("abcdefghijkl")
DEEP = '{"a":' * 100_000


@contextmanager
def modest(most: float = MOST) -> Iterator[None]:
    """Fail what takes much memory, whatever this process has taken before."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak is from here on
    before = peak()
    yield
    assert peak() - before < most


def peak() -> float:
    """The most megabytes that this process has had at once since the peak was cleared."""
    return int(re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)[1]) / 1024


def test_what_takes_much_memory_fails():
    with pytest.raises(AssertionError), modest():
        bytearray(b"x") * (500 * 2**20)
    with modest():  # though the process had more before
        pass


@pytest.mark.parametrize("read", [load_config, read_grid, read_protocols], ids=lambda read: read.__name__)
@pytest.mark.parametrize(
    "text", [LAUGHS, f"{LAUGHS}SEED: *l", "&a [*a]", "[" * 60_000], ids=["laughs", "use", "itself", "deep"]
)
def test_yaml_that_would_fill_the_memory_is_refused(tmp_path, read, text):
    with modest():
        assert refusal(lambda: read(trees.write_text(tmp_path / "a.yml", text)), "a.yml")


@pytest.mark.parametrize("text", [f"{LAUGHS}seed: *l", "a: &a [*a]"], ids=["laughs", "itself"])
def test_yaml_of_mmengine_that_would_fill_the_memory_is_refused(tmp_path, text):
    trees.write_text(tmp_path / "base.yaml", text)
    path = trees.write_text(tmp_path / "a.py", '_base_ = "base.yaml"')
    with modest():
        assert refusal(lambda: of_mmengine.load_config(path), "a.py")


def test_json_that_is_nested_without_end_is_refused(tmp_path):
    path = trees.write_text(tmp_path / "a.json", DEEP)
    with modest():
        assert refusal(lambda: of_mmengine.load_config(path), "a.json")
    torch.save({}, tmp_path / "a.pt")
    trees.write_text(tmp_path / "config.json", DEEP)
    with modest():
        assert refusal(lambda: detect_quick_gelu(tmp_path / "a.pt"), "config.json")


@pytest.mark.parametrize(
    ("name", "inside", "read"),
    [
        ("a.npz", "image.npy", load_features),
        ("a.npz", "image.npy", read_arrays),
        ("a.pth", "archive/data.pkl", read_tensors),
        ("a.pt", "archive/code/a.py", read_tensors),
        ("a.pth", "archive/data/0", load_from_local),
    ],
)
def test_archives_that_would_fill_the_memory_are_refused(tmp_path, monkeypatch, name, inside, read):
    monkeypatch.setattr(trust, "SMALL_ARCHIVE", 2**20)  # or the file would have to be larger
    path = zip_bomb(tmp_path / name, inside, size=2**27)
    with modest(), within(LONGEST):
        assert "claims to hold 134,217,728" in refusal(lambda: read(path), name)


def _array(shape: tuple[int, ...]) -> bytes:
    """The beginning of an array that has no end."""
    header = str({"descr": "<f4", "fortran_order": False, "shape": shape}).encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(64)


@pytest.mark.parametrize("shape", [(2**33,), (2**50,), (2**62, 2**62), (2**31, 1)], ids=str)
def test_arrays_that_claim_more_than_there_is(tmp_path, shape):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("image.npy", _array(shape))
    for read in (load_features, read_arrays):
        with modest():
            assert refusal(lambda read=read: read(tmp_path / "a.npz"), "a.npz")


@pytest.mark.parametrize("end", [2**40, 2**63, -1])
def test_safetensors_that_claim_more_than_there_is(tmp_path, end):
    header = json.dumps({"a": {"dtype": "F32", "shape": [max(end, 0) // 4], "data_offsets": [0, end]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(64))
    with modest():
        assert refusal(lambda: read_tensors(tmp_path / "a.safetensors"), "a.safetensors")
    whole = save({"a": torch.ones(3)})
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", 2**62) + whole[8:])
    with modest():
        assert refusal(lambda: read_tensors(tmp_path / "a.safetensors"), "a.safetensors")


@pytest.mark.parametrize("sides", [(60_000, 60_000), (2**31 - 1, 2**31 - 1)])
def test_images_that_would_fill_the_memory_are_refused(tmp_path, sides):
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", *sides, 8, 2, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(bytes(1000))), chunk(b"IEND", b"")]
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    with modest():
        assert refusal(lambda: read_image(tmp_path / "a.png"), "a.png")


def test_a_mat_file_that_would_fill_the_memory_is_refused(tmp_path):
    """A matrix of zeros, compressed: half a gigabyte in half a megabyte."""
    packer = zlib.compressobj(1)
    content = packer.compress(struct.pack("<II", 14, 2**29))
    for _ in range(2**29 // 2**24):
        content += packer.compress(bytes(2**24))
    content += packer.flush()
    head = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM"
    (tmp_path / "a.mat").write_bytes(head + struct.pack("<II", 15, len(content)) + content)
    unpacked = 2 * MAX_BYTES / 2**20  # as much as a part may have, and the part cut out of it
    with modest(unpacked + 100):
        assert refusal(lambda: read_mat(tmp_path / "a.mat"), "a.mat")
