"""Damaged files are read as far as they are good, or refused in one line naming the file; nothing is left half-written.

How to try more of them: see tests/fuzz_cases.py.
"""

import os

import pytest
from fuzz_arrays import ARRAY_TARGETS
from fuzz_cases import fuzz, refusal
from fuzz_configs import CONFIG_TARGETS
from fuzz_images import IMAGE_TARGETS
from fuzz_index import INDEX_TARGETS
from fuzz_targets import TARGETS
from fuzz_weights import WEIGHT_TARGETS
from hypothesis import given

ALL = [*TARGETS, *ARRAY_TARGETS, *INDEX_TARGETS, *CONFIG_TARGETS, *IMAGE_TARGETS, *WEIGHT_TARGETS]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("target", ALL, ids=lambda target: target.name)
def test_a_damaged_file_is_good_or_refused(target, tmp_path):
    file = target.make(tmp_path)
    original = file.read_bytes()
    assert refusal(lambda: target.read(file), "") == ""

    @fuzz(0.8 / len(ALL))
    @given(content=target.damage(original))
    def each(content):
        file.write_bytes(content)
        refusal(lambda: target.read(file), file.name, *target.also)
        assert not [name for name in os.listdir(tmp_path) if name.startswith(".")], "a draft was left"

    each()
