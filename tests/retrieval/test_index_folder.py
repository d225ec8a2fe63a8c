"""An index in a folder: what is damaged is refused in a line, one program writes, and nothing is left half done."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from index_cases import chunks, clustered, entries

from agreid_plugin.errors import InputError
from agreid_plugin.retrieval.index import Chunk, Entry, Where, build_index, faiss_backend, open_index
from agreid_plugin.retrieval.index.folder import VectorFile
from agreid_plugin.types import View

COUNT, WIDTH = 400, 16
IMAGES, FEATURES = entries(COUNT), clustered(COUNT, WIDTH)


@pytest.fixture
def folder(tmp_path) -> Path:
    build_index(tmp_path / "index", chunks(IMAGES, FEATURES, 100), kind="ivf")
    return tmp_path / "index"


def found(folder: Path, k: int = 10, where: Where | None = None) -> list[list[str]]:
    with open_index(folder) as index:
        results = index.search(FEATURES[:5], k, where or Where())
    return [[match.entry.path for match in matches] for matches in results]


def refused(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        open_index(folder)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_the_files_are_the_ones_that_are_named(folder):
    assert sorted(path.name for path in folder.iterdir()) == [
        "gallery.sqlite",
        "structure-0.faiss",
        "vectors-0.f32",
        "writer.lock",
    ]


@pytest.mark.parametrize("name", ["vectors-0.f32", "structure-0.faiss", "gallery.sqlite"])
def test_a_truncated_file_is_refused(folder, name):
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: len(data) // 2])
    assert name in refused(folder)
    assert "damaged" in refused(folder)


def change_table(folder: Path, statement: str) -> None:
    base = sqlite3.connect(folder / "gallery.sqlite")
    base.execute(statement)
    base.commit()
    base.close()


@pytest.mark.parametrize("name", ["vectors-0.f32", "structure-0.faiss"])
def test_a_missing_or_changed_file_is_refused(folder, name):
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    assert f"{name} has a wrong checksum: the index is damaged" in refused(folder)
    (folder / name).unlink()
    assert f"{name} is missing: the index is damaged" in refused(folder)


def test_a_changed_table_is_refused(folder):
    change_table(folder, "UPDATE images SET camera = camera + 1 WHERE row = 7")
    assert "gallery.sqlite is damaged (wrong checksum): build the index again" in refused(folder)


def test_other_versions_and_other_files_are_refused(folder, tmp_path):
    base = sqlite3.connect(folder / "gallery.sqlite")
    base.execute("PRAGMA user_version = 7")
    assert "is of version 7, this program reads 1: build the index again" in refused(folder)
    base.execute("PRAGMA application_id = 7")
    base.close()
    assert "is no table of a gallery index: name another folder" in refused(folder)
    (folder / "gallery.sqlite").write_text("hello" * 1000)
    assert "gallery.sqlite is damaged (file is not a database)" in refused(folder)
    assert "has no gallery index" in refused(tmp_path)
    with pytest.raises(InputError, match="is not empty and no gallery index: name another folder"):
        build_index(tmp_path, chunks(IMAGES, FEATURES))


def test_a_table_without_what_it_needs_is_refused(folder):
    change_table(folder, "DELETE FROM about WHERE key = 'width'")
    assert "gallery.sqlite is damaged (no width): build the index again" in refused(folder)


def test_large_files_are_compared_when_asked(folder, monkeypatch):
    monkeypatch.setattr(faiss_backend.files, "CHECK_UP_TO", 0)
    data = bytearray((folder / "vectors-0.f32").read_bytes())
    data[100] ^= 1
    (folder / "vectors-0.f32").write_bytes(data)
    with open_index(folder) as index, pytest.raises(InputError, match=r"vectors-0\.f32 has a wrong checksum"):
        index.check()


def test_one_program_writes_and_others_search(folder):
    lock = f"import sqlite3; sqlite3.connect({str(folder / 'writer.lock')!r}, 0).execute('BEGIN EXCLUSIVE')"
    with open_index(folder, write=True), open_index(folder) as reader:
        with pytest.raises(InputError, match="is being changed by another program: wait until it has finished"):
            open_index(folder, write=True)
        ran = subprocess.run([sys.executable, "-c", lock], capture_output=True, text=True, check=False)
        assert "database is locked" in ran.stderr  # in another process, too
        assert reader.search(FEATURES[:1], 1)[0][0].entry == IMAGES[0]
    subprocess.run([sys.executable, "-c", lock], check=True)
    open_index(folder, write=True).close()


def test_an_open_reader_sees_what_changes(folder):
    with open_index(folder, write=True) as writer, open_index(folder) as reader:
        assert reader.search(FEATURES[:1], 1)[0][0].entry == IMAGES[0]
        writer.remove(Where(paths=(IMAGES[0].path,)))
        assert reader.search(FEATURES[:1], 1)[0][0].entry != IMAGES[0]
        writer.compact()
        writer.add([Chunk([Entry("new.jpg")], FEATURES[:1])])
        assert reader.search(FEATURES[:1], 1)[0][0].entry == Entry("new.jpg")
        assert reader.info().images == COUNT
        writer.add(chunks(entries(50, COUNT), FEATURES[:50]))
        assert len(reader.search(FEATURES[:1], 2 * COUNT)[0]) == COUNT + 50


def test_a_damaged_file_is_refused_by_every_search(folder):
    with open_index(folder, write=True) as writer, open_index(folder) as reader:
        writer.remove(Where(cameras=(0,)))
        writer.compact()
        (folder / "structure-0.faiss").write_bytes(b"")
        for _ in range(2):
            with pytest.raises(InputError, match=r"structure-0\.faiss has 0 bytes instead of"):
                reader.search(FEATURES[:1])


def test_an_add_that_dies_changes_nothing(folder, monkeypatch):
    before = found(folder)

    def dies(*_):
        raise OSError("disk full")

    with open_index(folder, write=True) as index:
        monkeypatch.setattr(index._table, "insert", dies)
        with pytest.raises(OSError, match="disk full"):
            index.add([Chunk([Entry("new.jpg")], FEATURES[:1] * 2)])
    assert (folder / "vectors-0.f32").stat().st_size == (COUNT + 1) * WIDTH * 4  # written, and not known of
    assert found(folder) == before
    with open_index(folder, write=True) as index:
        index.add([Chunk([Entry("other.jpg")], FEATURES[:1])])
        index.check()
    assert set(found(folder, 2)[0]) == {IMAGES[0].path, "other.jpg"}


def test_compaction_leaves_the_removed_out_of_the_files(folder):
    where = Where(view=View.AERIAL)
    with open_index(folder, write=True) as index:
        gone = index.remove(where)
        assert (index.info().removed, index.info().images) == (gone, COUNT - gone)
        before = [[match.entry.path for match in hits] for hits in index.search(FEATURES[:5], 10)]
        index.compact()
        assert (index.info().removed, index.info().images) == (0, COUNT - gone)
        index.check()
    assert found(folder) == before
    assert sorted(path.name for path in folder.glob("vectors*")) == ["vectors-1.f32"]
    assert (folder / "vectors-1.f32").stat().st_size == (COUNT - gone) * WIDTH * 4
    kept = [entry.view != View.AERIAL for entry in IMAGES]
    lengths = np.linalg.norm(FEATURES[kept], axis=1, keepdims=True)
    stored = VectorFile(folder / "vectors-1.f32", WIDTH).read(COUNT - gone)
    np.testing.assert_allclose(stored, FEATURES[kept] / lengths, atol=1e-6)


def test_many_removed_images_compact_by_themselves(folder, monkeypatch):
    monkeypatch.setattr(faiss_backend, "GONE_LEAST", 100)
    with open_index(folder, write=True) as index:
        assert index.remove(Where(cameras=(0,))) == 80
        assert index.info().removed == 80
        assert index.remove(Where(cameras=(1,))) == 80
        assert index.info().removed == 0
    assert all(hits for hits in found(folder, 10, Where(cameras=(2,))))


def test_everything_can_be_removed_and_added_again(folder):
    with open_index(folder, write=True) as index:
        assert index.remove(Where(paths=tuple(entry.path for entry in IMAGES))) == COUNT
        assert index.search(FEATURES[:2], 3) == [[], []]
        index.compact()
        assert (index.info().kind, index.info().images) == ("flat", 0)
        index.add(chunks(IMAGES, FEATURES))
        assert index.info().kind == "ivf"
        assert index.search(FEATURES[:1], 1)[0][0].entry == IMAGES[0]
