"""Parts of .mat files that scipy would follow into nowhere are found before it reads them."""

import struct

import numpy as np
import pytest
import scipy.io
from data import trees

from agreid_plugin.data.datasets import load
from agreid_plugin.data.datasets.mat_files import read_mat
from agreid_plugin.errors import InputError

FILE = "qut_attribute_v4_88_attributes.mat"
INT64_TAG = bytes([12, 0, 0, 0, 16, 0, 0, 0])  # two numbers of 64 bits


@pytest.mark.parametrize("compressed", [False, True])
def test_good_files_are_read(tmp_path, compressed):
    content = {"numbers": np.arange(6.0).reshape(2, 3), "text": "\u00e9\u4e00", "none": [], "yes": True, "z": 1 + 2j}
    cells = np.array(["a", 1, {"deep": [1, 2]}], dtype=object)
    scipy.io.savemat(tmp_path / "a.mat", {"s": {**content, "cells": cells}}, do_compression=compressed)
    found = read_mat(tmp_path / "a.mat")["s"]
    assert found["numbers"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (found["text"], found["yes"], found["z"]) == ("\u00e9\u4e00", True, 1 + 2j)
    assert found["none"].size == 0
    assert found["cells"][:2].tolist() == ["a", 1]
    assert found["cells"][2].deep.tolist() == [1, 2]


def variable(matrix_class: int, sizes: tuple[int, int], *inside: bytes) -> bytes:
    """Return a .mat file of one variable."""

    def part(kind: int, content: bytes) -> bytes:
        return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)

    flags, size = struct.pack("<II", matrix_class, 0), struct.pack("<ii", *sizes)
    head = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM"
    return head + part(14, b"".join([part(6, flags), part(5, size), part(1, b"name"), *inside]))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (variable(4, (2**30, 1), struct.pack("<II", 4, 0)), "the size of a matrix is wrong"),  # 5 GB of blanks
        (variable(4, (2**31 - 1, 2**31 - 1), struct.pack("<II", 4, 0)), "the size of a matrix is wrong"),
        (variable(2, (2**30, 1), struct.pack("<III", 5, 4, 1) + bytes(4), struct.pack("<II", 1, 0)), "the size"),
        (variable(6, (-1, -1), struct.pack("<II", 9, 0)), "the size of a matrix is wrong"),
        (variable(1, (4, 1)), "a matrix has more or fewer parts than it says"),
        (variable(6, (0, 0)), "a part is of a wrong type, or missing"),
        (variable(3, (1, 1)), "a matrix of class 3, which is neither numbers, text, cells nor a struct"),
        (variable(16, (1, 1)), "a matrix of class 16"),
        (variable(17, (1, 1)), "a matrix of class 17"),
    ],
)
def test_what_is_too_large_or_no_data_is_refused(tmp_path, content, words):
    (tmp_path / "a.mat").write_bytes(content)
    with pytest.raises(InputError, match=rf"a\.mat: not a readable \.mat file: .*{words}"):
        read_mat(tmp_path / "a.mat")


@pytest.mark.parametrize("kind", [14, 8, 0, 0x020C, 200])
def test_a_part_of_a_type_that_does_not_exist(tmp_path, kind):
    root = trees.ag_reid(tmp_path)
    content = (root / FILE).read_bytes()
    assert INT64_TAG in content
    (root / FILE).write_bytes(content.replace(INT64_TAG, kind.to_bytes(4, "little") + INT64_TAG[4:], 1))
    with pytest.raises(InputError, match=rf"{FILE}: not a readable \.mat file: a part"):
        load("AG-ReID", root)


@pytest.mark.parametrize("size", [0, 100, 128, 140, 1000])
def test_files_cut_short(tmp_path, size):
    root = trees.ag_reid(tmp_path)
    (root / FILE).write_bytes((root / FILE).read_bytes()[:size])
    with pytest.raises(InputError, match="not a readable"):
        load("AG-ReID", root)
