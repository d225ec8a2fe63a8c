"""Host fixes keep what callers of a host rely on: every replaced function and class is called as before."""

import json
import subprocess
import sys

import pytest
from conftest import ROOT

HELPER = ROOT / "tests" / "helpers" / "fixed_signatures.py"
INTERNAL = ("fastreid.data.data_utils.DataLoaderX.preload", "fastreid.data.data_utils.DataLoaderX.shutdown")
"""Parts of the host's CUDA streams and its thread, which nothing else of it calls."""
NO_FUNCTIONS = {
    *("collections_names", "torch_six", "numpy_names", "numpy_in1d", "torchvision_schemas", "no_multimodal_models"),
    *("random_affine_arguments", "safe_gallery_features", "networks_described_by_files"),
}
"""Fixes that give a name back, or another module, and replace no function of a host."""


@pytest.fixture(scope="module")
def replaced() -> list[dict[str, str]]:
    """What the fixes replace in a process of its own, where no host has been imported before."""
    done = subprocess.run([sys.executable, HELPER], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_replaced_function_is_called_as_before(replaced):
    problems = [f"{row['fix']}: {row['name']}: {row['problem']}" for row in replaced if row["problem"]]
    assert not [problem for problem in problems if not any(name in problem for name in INTERNAL)]


def test_every_fix_that_replaces_functions_is_compared(replaced):
    compared = {row["fix"] for row in replaced if row["name"]}
    assert {row["fix"] for row in replaced} - compared <= NO_FUNCTIONS
    assert len(compared) > 20
