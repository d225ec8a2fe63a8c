"""Files that are not there: bad input for the command, and the error that a host's own function raises."""

import pickle

import pytest
import torch
from fastreid.config import CfgNode
from mmengine.runner import load_checkpoint

from agreid_plugin.errors import InputError, MissingInputError
from agreid_plugin.hosts.safe_torch import SafeTorch
from agreid_plugin.inference.weights import describe_files, load_weights, require_weights
from agreid_plugin.nn.checkpoints import read_checkpoint


@pytest.mark.parametrize(
    "read",
    [
        read_checkpoint,
        require_weights,
        SafeTorch().load,  # what a backbone of fast-reid calls
        CfgNode.load_yaml_with_base,
        lambda path: load_checkpoint(torch.nn.Linear(1, 1), path),
        lambda path: load_weights(torch.nn.Linear(1, 1), path),
    ],
)
def test_a_missing_file_is_both_errors(tmp_path, read):
    for kind in (InputError, FileNotFoundError):
        with pytest.raises(kind, match=r"file .*none\.pth'? does not exist"):
            read(str(tmp_path / "none.pth"))


def test_the_error_of_another_process_is_the_same():
    error = pickle.loads(pickle.dumps(MissingInputError("a\nb does not exist")))
    assert (type(error), str(error)) == (MissingInputError, "a b does not exist")


def test_a_list_of_weight_files_says_it_once(tmp_path):
    (finding,) = describe_files([tmp_path / "none.pth"])
    assert finding.text == f"weight file {tmp_path / 'none.pth'} does not exist"
