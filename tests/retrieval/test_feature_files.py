"""Files of features: written in parts, read in parts, and refused in a line when damaged."""

import json
import zipfile

import numpy as np
import pytest
from index_cases import WIDTH, chunks, entries, vectors

from agreid_plugin.errors import InputError
from agreid_plugin.retrieval import feature_files
from agreid_plugin.retrieval.feature_files import COLUMNS, KIND, read_features, write_features

COUNT = 130
IMAGES, FEATURES = entries(COUNT), vectors(COUNT)


@pytest.fixture(params=[".npz", ".parquet"])
def file(request, tmp_path):
    path = tmp_path / f"f{request.param}"
    write_features(path, request.param, lambda: chunks(IMAGES, FEATURES), {"fingerprint": "m"})
    return path


def test_what_is_written_is_read(file, monkeypatch):
    monkeypatch.setattr(feature_files, "CHUNK", 40)
    fingerprint, found = read_features(file)
    found = list(found)
    assert fingerprint == "m"
    assert all(chunk.vectors.flags.writeable for chunk in found)  # or torch warns
    assert max(len(chunk.entries) for chunk in found) <= 50
    assert [entry for chunk in found for entry in chunk.entries] == IMAGES
    np.testing.assert_array_equal(np.concatenate([chunk.vectors for chunk in found]), FEATURES)


def test_an_npz_is_numpys_own(tmp_path):
    write_features(tmp_path / "f.npz", ".npz", lambda: chunks(IMAGES, FEATURES), {"fingerprint": "m"})
    arrays = np.load(tmp_path / "f.npz")
    assert set(arrays) == {"features", "about", *COLUMNS}
    assert arrays["features"].shape == (COUNT, WIDTH)
    assert arrays["path"].tolist() == [entry.path for entry in IMAGES]
    assert json.loads(arrays["about"].tobytes()) == {"kind": KIND, "fingerprint": "m"}


def read(path) -> None:
    list(read_features(path)[1])


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
def test_a_cut_file_is_refused(file, part):
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(InputError, match="not features of 'fastreid extract'") as caught:
        read(file)
    assert len(str(caught.value).splitlines()) == 1


def test_other_files_are_refused(tmp_path):
    np.savez(tmp_path / "other.npz", features=FEATURES)
    with pytest.raises(InputError, match=r"other\.npz: not features of 'fastreid extract'"):
        read(tmp_path / "other.npz")
    np.savez(tmp_path / "about.npz", about=np.frombuffer(b'{"kind": "else"}', dtype=np.uint8))
    with pytest.raises(InputError, match=r"about\.npz has no features that 'fastreid extract' wrote"):
        read(tmp_path / "about.npz")
    (tmp_path / "no.parquet").write_text("hello")
    with pytest.raises(InputError, match=r"no\.parquet: not features"):
        read(tmp_path / "no.parquet")
    with pytest.raises(InputError, match="does not exist"):
        read(tmp_path / "gone.npz")


@pytest.mark.parametrize("name", ["path", "features"])
def test_columns_of_other_lengths_or_kinds_are_refused(tmp_path, name):
    write_features(tmp_path / "f.npz", ".npz", lambda: chunks(IMAGES, FEATURES), {"fingerprint": "m"})
    for array in (np.ones((COUNT - 1, 3)), np.array([None] * COUNT)):
        with zipfile.ZipFile(tmp_path / "f.npz") as old, zipfile.ZipFile(tmp_path / "g.npz", "w") as new:
            for member in old.namelist():
                with new.open(member, "w") as file:
                    if member == f"{name}.npy":
                        np.lib.format.write_array(file, array)
                    else:
                        file.write(old.read(member))
        with pytest.raises(InputError, match=r"g\.npz: not features"):
            read(tmp_path / "g.npz")
