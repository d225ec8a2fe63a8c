"""An index that several programs use: writers that are killed, changes while others search, folders to read only."""

import multiprocessing
import random
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from index_cases import add_until_killed, chunk_for, die_while_writing, search_unwritable, vectors

from agreid_plugin.errors import InputError
from agreid_plugin.retrieval.index import Where, build_index, faiss_backend, metadata, open_index

KILLS = 40
COUNT = 20


@pytest.fixture
def folder(tmp_path) -> Path:
    build_index(tmp_path / "index", map(chunk_for, range(COUNT)))
    return tmp_path / "index"


@pytest.fixture(scope="module")
def writer():
    """A process that has imported what it needs, and forks those that are killed."""
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        yield lambda call, *given: pool.submit(call, *given).result()


def find_best(index, number: int, **options) -> str:
    """The path that is found for the vector of a number."""
    return index.search(vectors(1, seed=number), 1, **options)[0][0].entry.path


def test_readers_answer_while_writers_are_killed(folder, writer):
    known, asked, over = [COUNT], [], threading.Event()  # images that are in

    def ask(index) -> None:
        number, images = random.randrange(known[-1]), known[-1]
        assert (
            find_best(index, number) == find_best(index, number, where=Where(cameras=(number % 3,))) == f"{number}.jpg"
        )
        assert images <= index.info().images
        asked.append(number)

    def keep_asking() -> None:
        while not over.wait(0.02):
            ask(opened)
            with open_index(folder) as index:
                ask(index)

    with open_index(folder) as opened, ThreadPoolExecutor(1) as pool:
        asking = pool.submit(keep_asking)
        try:
            for _ in range(KILLS):
                first, before = known[-1], len(asked)
                known.append(writer(add_until_killed, folder, first, random.uniform(0, 0.08)))
                assert known[-1] > first
                # The image that was being added may be in as well; it is added again then, which replaces it.
                assert known[-1] <= opened.info().images <= known[-1] + 1
                added = range(first, known[-1])
                found = opened.search(np.concatenate([vectors(1, seed=number) for number in added]), 1)
                assert [matches[0].entry.path for matches in found] == [f"{number}.jpg" for number in added]
                opened.check()
                while len(asked) == before and not asking.done():
                    time.sleep(0.001)
        finally:
            over.set()
        asking.result()


def test_a_reader_undoes_what_a_killed_writer_left(folder, writer):
    with open_index(folder) as opened:
        for search in (lambda: find_best(opened, 3), lambda: find_best(open_index(folder), 3)):
            writer(die_while_writing, folder)
            assert search() == "3.jpg"
            assert not (folder / "gallery.sqlite-journal").exists()
            opened.check()


def test_a_folder_to_read_only_is_searched_and_names_who_can_undo_a_change(writer):
    with tempfile.TemporaryDirectory() as parent:
        Path(parent).chmod(0o755)  # for any user
        folder = Path(parent, "index")
        build_index(folder, map(chunk_for, range(COUNT)))

        def search() -> str:
            folder.chmod(0o555)
            (folder / "gallery.sqlite").chmod(0o444)
            try:
                return writer(search_unwritable, folder)
            finally:
                folder.chmod(0o755)
                (folder / "gallery.sqlite").chmod(0o644)

        assert search() == "0.jpg"
        writer(die_while_writing, folder)
        assert search().endswith(
            "a change that was cut off has to be undone, and this program may not write here: "
            f"run `fastreid index info --index {folder}` as a user who may, or copy the folder"
        )
        open_index(folder).close()
        assert search() == "0.jpg"


@pytest.fixture
def meanwhile(monkeypatch):
    """Have something happen once while a search compares vectors."""

    def arrange(change) -> None:
        changes, native = [change], faiss_backend.Searcher.nearest

        def nearest(*given):
            if changes:
                changes.pop()()
            return native(*given)

        monkeypatch.setattr(faiss_backend.Searcher, "nearest", nearest)

    monkeypatch.setattr(metadata, "WAIT", 0.1)
    return arrange


def test_others_write_during_a_search(folder, meanwhile):
    with open_index(folder, write=True) as writer, open_index(folder) as reader:
        meanwhile(lambda: writer.add([chunk_for(COUNT)]))
        assert find_best(reader, 0) == "0.jpg"
        assert find_best(reader, COUNT) == f"{COUNT}.jpg"


def test_rows_that_change_during_a_search_are_looked_for_again(folder, meanwhile):
    with open_index(folder, write=True) as writer, open_index(folder) as reader:

        def remove_and_renumber() -> None:
            writer.remove(Where(paths=("0.jpg",)))
            writer.compact()

        second = reader.search(vectors(1), COUNT)[0][1:]
        for change in (lambda: writer.remove(Where(paths=("0.jpg",))), remove_and_renumber):
            writer.add([chunk_for(0)])
            meanwhile(change)
            assert reader.search(vectors(1), COUNT)[0] == second


def test_a_check_is_of_the_files_that_count(folder, monkeypatch):
    changes, native = [], faiss_backend.files.VectorFile.check

    def check(*given) -> None:
        if changes:
            changes.pop()()
        native(*given)

    monkeypatch.setattr(faiss_backend.files.VectorFile, "check", check)
    with open_index(folder, write=True) as writer, open_index(folder) as reader:
        changes.append(writer.compact)
        reader.check()
        (folder / "vectors-1.f32").unlink()
        with pytest.raises(InputError, match=r"vectors-1\.f32 is missing: the index is damaged"):
            reader.check()


def test_a_writer_that_waited_in_vain_goes_on(folder, monkeypatch):
    monkeypatch.setattr(metadata, "WAIT", 0.1)
    with open_index(folder, write=True) as writer, open_index(folder) as reader:
        with reader._table.transaction():
            reader.info()
            with pytest.raises(InputError, match="database is locked"):
                writer.add([chunk_for(COUNT)])
        assert reader.info().images == COUNT
        writer.add([chunk_for(COUNT)])
        assert find_best(reader, COUNT) == f"{COUNT}.jpg"
        writer.check()
