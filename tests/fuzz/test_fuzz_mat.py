"""Parts of .mat files that scipy would follow into nowhere are found before it reads them."""

import numpy as np
import pytest
import scipy.io
from data import trees
from fuzz_cases import refusal

from agreid_plugin.data.datasets import load
from agreid_plugin.data.datasets.mat_files import refuse_damaged
from agreid_plugin.errors import InputError

FILE = "qut_attribute_v4_88_attributes.mat"
INT64_TAG = bytes([12, 0, 0, 0, 16, 0, 0, 0])  # two numbers of 64 bits


@pytest.mark.parametrize("compressed", [False, True])
def test_good_files_pass(tmp_path, compressed):
    content = {"numbers": np.arange(6.0).reshape(2, 3), "text": "\u00e9\u4e00", "none": [], "yes": True, "z": 1 + 2j}
    cells = np.array(["a", 1, {"deep": [1, 2]}], dtype=object)
    scipy.io.savemat(tmp_path / "a.mat", {"s": {**content, "cells": cells}}, do_compression=compressed)
    assert refusal(lambda: refuse_damaged(tmp_path / "a.mat"), "a.mat") == ""


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
