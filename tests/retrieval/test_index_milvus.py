"""Milvus alone: its kinds, a server at an address, collections, and what is refused."""

import subprocess
import sys

import numpy as np
import pytest
from index_cases import chunks, clustered, entries
from milvus_lite.adapter.grpc.server import start_server_in_thread

from agreid_plugin.errors import InputError
from agreid_plugin.retrieval.index import Chunk, Entry, Where, build_index, index_types, milvus_backend, open_index
from agreid_plugin.retrieval.index.milvus_client import Milvus
from agreid_plugin.types import View

COUNT, WIDTH = 600, 16
IMAGES = entries(COUNT)
FEATURES, QUERIES = np.split(clustered(COUNT + 20, WIDTH), [COUNT])


def paths(found) -> list[list[str]]:
    return [[match.entry.path for match in hits] for hits in found]


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    folder = tmp_path_factory.mktemp("truth") / "index"
    build_index(folder, chunks(IMAGES, FEATURES, 600))
    with open_index(folder) as index:
        return {where.key: paths(index.search(QUERIES, 10, where)) for where in (Where(), Where(view=View.GROUND))}


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_approximate_kinds(tmp_path, truth, kind):
    info = build_index(tmp_path / "gallery.db", chunks(IMAGES, FEATURES, 600), kind=kind)
    assert (info.kind, info.images, info.backend) == (kind, COUNT, "milvus-lite")
    assert info.recall >= index_types.RECALL
    assert info.effort >= index_types.FIRST_EFFORT[kind]
    with open_index(tmp_path / "gallery.db") as index:
        for where in (Where(), Where(view=View.GROUND)):
            found = [set(hits) for hits in paths(index.search(QUERIES, 10, where))]
            assert index_types.measure_recall(found, [set(hits) for hits in truth[where.key]]) > 0.9


def test_a_server_is_asked_the_same_way(tmp_path, truth):
    server, base, port = start_server_in_thread(str(tmp_path / "served"), host="127.0.0.1", port=0)
    try:
        uri = f"http://127.0.0.1:{port}#people"
        info = build_index(uri, chunks(IMAGES, FEATURES, 200), fingerprint="m")
        assert (info.backend, info.images, info.chunks, info.size) == ("milvus", COUNT, 3, None)
        with open_index(uri, write=True) as index:
            assert paths(index.search(QUERIES, 10)) == truth[Where().key]
            assert paths(index.search(QUERIES, 10, Where(view=View.GROUND))) == truth[Where(view=View.GROUND).key]
            assert index.remove(Where(view=View.AERIAL)) == 200
            assert index.info().images == 400
        with pytest.raises(InputError, match=r"#dogs has no collection dogs: name one that exists, or build it"):
            open_index(f"http://127.0.0.1:{port}#dogs")
    finally:
        server.stop(grace=0)
        base.close()


def test_no_server_is_said_in_a_line(monkeypatch):
    monkeypatch.setattr("agreid_plugin.retrieval.index.milvus_client.TIMEOUT", 1)
    with pytest.raises(InputError, match=r"http://127.0.0.1:1: Fail connecting to server on 127.0.0.1:1") as caught:
        open_index("http://127.0.0.1:1")
    assert len(str(caught.value).splitlines()) == 1


def test_many_paths_are_removed_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(milvus_backend, "ROWS", 7)
    build_index(tmp_path / "g.db", [Chunk([Entry(f"{n}") for n in range(30)], np.eye(30))])
    with open_index(tmp_path / "g.db", write=True) as index:
        assert index.remove(Where(paths=tuple(str(n) for n in range(20)))) == 20
        assert index.info().images == 10


def test_more_results_than_milvus_gives_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(milvus_backend, "MAX_RESULTS", 5)
    build_index(tmp_path / "g.db", [Chunk([Entry(f"{n}") for n in range(8)], np.eye(8))])
    with open_index(tmp_path / "g.db") as index:
        assert [len(hits) for hits in index.search(np.eye(8)[:1], 4)] == [4]
        with pytest.raises(InputError, match="k=5: Milvus gives 4 results of a query at most: ask for fewer"):
            index.search(np.eye(8)[:1], 5)
        index.check()


def test_another_process_has_to_wait(tmp_path):
    build_index(tmp_path / "g.db", [Chunk([Entry("a")], np.eye(1))])
    hold = "from milvus_lite import MilvusLite; base = MilvusLite(sys.argv[1]); print(1, flush=True); sys.stdin.read()"
    other = subprocess.Popen([sys.executable, "-c", f"import sys; {hold}", tmp_path / "g.db"], stdin=-1, stdout=-1)
    try:
        other.stdout.readline()
        with pytest.raises(InputError, match=r"g\.db: cannot be opened: another program has it open, or it is damaged"):
            open_index(tmp_path / "g.db")
    finally:
        other.communicate()
    open_index(tmp_path / "g.db").close()


def tell(uri, version: str) -> None:
    milvus = Milvus(str(uri))
    milvus.client.upsert("gallery_about", [{"key": "version", "value": version, "vector": [0, 1]}])
    milvus.close()


def test_damaged_and_other_data_is_refused(tmp_path):
    build_index(tmp_path / "g.db", [Chunk([Entry("a")], np.eye(1))])
    tell(tmp_path / "g.db", "7")
    with pytest.raises(InputError, match="is of version 7, this program reads 1: build the index again"):
        open_index(tmp_path / "g.db")
    tell(tmp_path / "g.db", "{")
    with pytest.raises(InputError, match=r"collection gallery_about of .* is damaged: build the index again"):
        open_index(tmp_path / "g.db")
    for path in (tmp_path / "g.db" / "collections").rglob("*.json"):
        path.write_text("{")
    with pytest.raises(InputError) as caught:
        open_index(tmp_path / "g.db")
    assert len(str(caught.value).splitlines()) == 1
    (tmp_path / "old.db").write_bytes(b"SQLite format 3")
    with pytest.raises(InputError, match=r"old\.db is a file of Milvus Lite before 3\.0, or none of it"):
        open_index(tmp_path / "old.db")


def test_a_change_of_kind_that_died_is_put_right(tmp_path, truth):
    build_index(tmp_path / "g.db", chunks(IMAGES, FEATURES, 600))
    milvus = Milvus(str(tmp_path / "g.db"))
    milvus.client.release_collection("gallery")
    milvus.client.drop_index("gallery", "vector")
    milvus.close()
    with open_index(tmp_path / "g.db", write=True) as index:
        assert paths(index.search(QUERIES, 10)) == truth[Where().key]


def test_what_milvus_lacks_is_refused(tmp_path):
    with pytest.raises(InputError, match="Milvus Lite has no pq: choose flat, ivf or hnsw, or a server"):
        build_index(tmp_path / "g.db", [Chunk([Entry("a")], np.eye(1))], kind="pq")
    assert not (tmp_path / "g.db").exists()
    with pytest.raises(InputError, match="collection 'a b' should be named with letters, digits and _"):
        build_index(f"{tmp_path}/g.db#a b", [Chunk([Entry("a")], np.eye(1))])
    with pytest.raises(InputError, match="its folder does not exist"):
        build_index(tmp_path / "no" / "g.db", [Chunk([Entry("a")], np.eye(1))])


def test_without_pymilvus_it_is_said_how_to_install_it(tmp_path, monkeypatch):
    for name in ("pymilvus", "pymilvus.exceptions"):
        monkeypatch.setitem(sys.modules, name, None)
    for uri in (tmp_path / "gallery.db", "http://127.0.0.1:1"):
        with pytest.raises(InputError, match="an index of Milvus needs pymilvus: pip install pymilvus milvus-lite"):
            build_index(uri, chunks(IMAGES[:5], FEATURES[:5]))
    assert not (tmp_path / "gallery.db").exists()
