import logging
import pickle
import sys
import types
from collections import OrderedDict

import numpy as np
import pytest
import torch
from malicious import POINTERS, Calls, Writes, evil_checkpoint, slipping_tar, slipping_zip
from torch.serialization import add_safe_globals, clear_safe_globals, get_safe_globals

from agreid_plugin.errors import InputError
from agreid_plugin.nn.checkpoints import read_arrays, read_checkpoint, read_tensors
from agreid_plugin.nn.safe_unpickling import load_plain
from agreid_plugin.trust import trust

STATE = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.tensor([1, 2])}


@pytest.fixture
def saved(tmp_path):
    def save(content) -> str:
        path = tmp_path / "weights.pth"
        torch.save(content, path)
        return str(path)

    return save


@pytest.fixture
def of_mmengine(monkeypatch):
    """A class of that package whose making is noticed, also where the package is not installed."""
    made = []
    module = types.ModuleType("mmengine.buffer")

    class Buffer:
        def __init__(self):
            self.values, self.mean = np.arange(3.0), np.float64(1)

        def __setstate__(self, state):
            made.append(state)

    Buffer.__module__, Buffer.__qualname__ = "mmengine.buffer", "Buffer"
    module.Buffer = Buffer
    monkeypatch.setitem(sys.modules, "mmengine", sys.modules.get("mmengine", types.ModuleType("mmengine")))
    monkeypatch.setitem(sys.modules, "mmengine.buffer", module)
    return Buffer, made


@pytest.mark.parametrize(
    "content", [STATE, {"model": STATE, "epoch": 3}, {"state_dict": STATE, "meta": {"epoch": 3}}], ids=str
)
def test_tensors_are_found_in_every_format(saved, content):
    found = read_tensors(saved(content))
    assert list(found) == list(STATE)
    for name, value in STATE.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0)


def test_objects_of_mmengine_are_not_made(saved, of_mmengine):
    buffer, made = of_mmengine
    hub = {"loss": buffer(), "mean": Calls(getattr, "text", "upper"), "rate": np.float64(0.1), "array": np.arange(4)}
    path = saved({"state_dict": STATE, "message_hub": hub, "meta": {"epoch": 3}})
    content = load_plain(path)
    assert not made
    assert content["meta"] == {"epoch": 3}
    assert content["message_hub"] == {}
    torch.testing.assert_close(read_tensors(path)["a.weight"], STATE["a.weight"], rtol=0, atol=0)
    assert not made


def test_what_torch_allows_is_as_before(saved):
    before = set(get_safe_globals())
    read_checkpoint(saved({"state_dict": STATE, "rate": np.float64(0.1)}))
    with pytest.raises(InputError):
        read_checkpoint(saved({"state_dict": STATE, "rate": np.float64(0.1), "more": Calls(print, "run")}))
    assert set(get_safe_globals()) == before


@pytest.mark.parametrize("function", [print, exec, eval, pickle.loads], ids=lambda function: function.__name__)
@pytest.mark.parametrize("host", [False, True], ids=["alone", "in mmengine's"])
def test_code_is_refused_and_does_not_run(saved, function, host, capsys):
    content = {"state_dict": STATE, "more": Calls(function, "print('run')")}
    if host:
        content["message_hub"] = np.arange(3)
    with pytest.raises(InputError, match="was not loaded: it holds more than tensors and plain values"):
        read_checkpoint(saved(content))
    assert not capsys.readouterr().out


def test_getattr_reaches_nothing(saved):
    reach = Calls(getattr, Calls(getattr, np.ndarray, "__init__"), "__globals__")
    assert load_plain(saved({"state_dict": STATE, "more": reach})).keys() == {"state_dict"}


def test_what_holds_an_object_is_left_out_with_it(saved, caplog):
    """A list of three values would be another with two; a dict loses the entry."""
    shared = {"kept": 1, "rate": np.float64(1)}
    content = {
        "list": [1, np.float64(1)],
        "tuple": (1, [np.dtype("O")]),
        "set": {np.float64(1)},
        "class": np.float64,
        np.float64(1): "key",
        "groups": [shared, shared],
    }
    caplog.set_level(logging.INFO)
    assert load_plain(saved(content)) == {"groups": [{"kept": 1}, {"kept": 1}]}
    assert len({record.getMessage() for record in caplog.records}) == 1
    assert "list, tuple, set and 3 more" in caplog.text
    with pytest.raises(InputError, match=r"weights\.pth was not loaded: .* asks for numpy"):
        read_checkpoint(saved(np.arange(3)))


def test_what_other_libraries_allow_is_not_allowed_here(saved):
    before = get_safe_globals()
    add_safe_globals([np.dtype, np.ndarray, print])
    try:
        assert load_plain(saved({"a": 1, "b": Calls(np.dtype, "O"), "c": POINTERS["array"]})) == {"a": 1}
        with pytest.raises(pickle.UnpicklingError, match="print"):
            load_plain(saved({"a": Calls(print, "run")}))
    finally:
        clear_safe_globals()
        add_safe_globals(before)


def test_containers_that_would_trouble_who_goes_through_them(saved):
    circle: list = []
    circle.append({"more": circle})
    with pytest.raises(InputError, match=r"its part more\.more holds itself"):
        read_checkpoint(saved({"state_dict": STATE, "more": circle}))
    many = [1]
    for _ in range(60):
        many = [many, many]
    assert list(read_tensors(saved({"state_dict": STATE, "more": many}))) == list(STATE)
    shadowed = Calls(OrderedDict, list(STATE.items()), state={"items": 1, "_metadata": {"a": {"version": 1}}})
    stored = read_checkpoint(saved({"model": shadowed}))["model"]
    assert [name for name, _ in stored.items()] == list(STATE)
    assert vars(stored) == {"_metadata": {"a": {"version": 1}}}


def test_objects_in_a_file_of_the_old_format_are_not_made(tmp_path):
    path = tmp_path / "old.pth"
    torch.save({"state_dict": STATE, "rate": np.float64(0.1)}, path, _use_new_zipfile_serialization=False)
    assert load_plain(path).keys() == {"state_dict"}
    assert list(read_tensors(path)) == list(STATE)


@pytest.fixture
def trusting():
    trust(True)
    yield
    trust(False)


@pytest.mark.parametrize("old", [False, True], ids=["zip", "old"])
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_refusal_names_what_is_asked_for_and_both_ways_out(tmp_path, old, protocol):
    content = {"model": STATE, "more": Writes(tmp_path / "marker")}
    torch.save(content, tmp_path / "a.pth", pickle_protocol=protocol, _use_new_zipfile_serialization=not old)
    with pytest.raises(InputError, match=r"a\.pth was not loaded: .* asks for io\.open; .* can run code") as caught:
        read_tensors(tmp_path / "a.pth")
    assert "--trust-checkpoint" in str(caught.value)
    assert "state dict saved alone" in str(caught.value)
    assert not (tmp_path / "marker").exists()


@pytest.mark.usefixtures("trusting")
def test_a_trusted_file_is_loaded_and_named_in_one_line(tmp_path, caplog):
    path = evil_checkpoint(tmp_path / "a.pth", tmp_path / "marker", model=STATE)
    assert list(read_tensors(path)) == list(STATE)
    assert (tmp_path / "marker").exists()
    assert {record.getMessage() for record in caplog.records} == {  # an earlier run in this process may pass it on
        f"{path} is loaded with the code that it holds, as --trust-checkpoint says"
    }


@pytest.mark.usefixtures("trusting")
def test_trust_changes_nothing_for_plain_and_for_damaged_files(saved, tmp_path, caplog):
    read_tensors(saved(STATE))
    assert not caplog.records
    (tmp_path / "b.pth").write_bytes(pickle.dumps(STATE)[:-20])
    with pytest.raises(InputError, match=r"b\.pth cannot be"):
        read_tensors(tmp_path / "b.pth")


@pytest.mark.usefixtures("trusting")
def test_a_whole_model_of_a_trusted_file(saved):
    assert set(read_tensors(saved(torch.nn.Linear(2, 3)))) == {"weight", "bias"}


class Inner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(2, 3))
        self.register_buffer("turned", torch.arange(6).half().reshape(3, 2).T)
        self.factor, self.name = 3, "inner"

    def forward(self, values):
        return values @ self.weight * self.factor


class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.rest = Inner(), torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
        self.again = self.first

    def forward(self, values):
        return self.rest(self.first(values)) + self.again(values)


def test_tensors_of_an_archive_are_those_of_torch(tmp_path):
    torch.jit.script(Outer()).save(tmp_path / "a.pt")
    expected = torch.jit.load(tmp_path / "a.pt").state_dict()
    found = read_tensors(tmp_path / "a.pt")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0)


class Sneaky(torch.nn.Module):
    """Makes a file when torch loads it."""

    marker: str

    def __init__(self, marker: str):
        super().__init__()
        self.weight, self.marker = torch.nn.Parameter(torch.ones(2)), marker

    @torch.jit.export
    def __getstate__(self):
        return self.weight, self.marker, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, str, bool]):
        _, self.marker, self.training = state
        self.weight = torch.from_file(self.marker, True, 4)

    def forward(self, values):
        return values


def test_code_in_an_archive_does_not_run(tmp_path):
    marker = tmp_path / "marker"
    torch.jit.script(Sneaky(str(marker))).save(tmp_path / "a.pt")
    assert not read_tensors(tmp_path / "a.pt")  # its state is its own affair
    assert not marker.exists()
    torch.jit.load(tmp_path / "a.pt")
    assert marker.exists()  # torch does run it


def test_tar_archives_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"a\.pth is a tar archive"):
        read_tensors(slipping_tar(tmp_path / "a.pth"))


@pytest.mark.parametrize("name", ["a.pth", "a.pt", "a.npz", "a.safetensors"])
def test_archives_with_names_that_lead_out_are_refused(tmp_path, name):
    folder = tmp_path / "deep" / "down"
    folder.mkdir(parents=True)
    path = slipping_zip(folder / name, {"archive/code/a.py": b"", "archive/version": b"3"} if name == "a.pt" else None)
    with pytest.raises(InputError, match=name):
        read_arrays(path) if name == "a.npz" else read_tensors(path)
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == [path]


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.zeros(1).expand(2**40), "claims 4,398,046,511,104 bytes, of which the file has 4"),
        (torch.full((3,), torch.nan), "the training that wrote it had diverged"),
        (torch.ones(3).to_sparse(), "of a kind that no weights are of"),
        (torch.ones(3, device="meta"), "of a kind that no weights are of"),
    ],
    ids=["endless", "nan", "sparse", "meta"],
)
def test_tensors_that_are_no_weights(saved, tensor, words):
    with pytest.raises(InputError, match=f"a.weight .*{words}"):
        read_tensors(saved({"a.weight": tensor}))
