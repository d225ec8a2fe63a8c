"""Milvus backend: an index in a Milvus server, for galleries that outgrow one machine, or in Milvus Lite.

Both take the same calls. Sharding, replicas and memory are left to Milvus.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.validation import FeatureArray
from agreid_plugin.retrieval.index.base import VERSION, GalleryIndex, Info
from agreid_plugin.retrieval.index.entries import ANY, FIELDS, Chunk, Match, Where, unit_vectors
from agreid_plugin.retrieval.index.folder import measure_size
from agreid_plugin.retrieval.index.index_types import (
    BUILD_EFFORT,
    FIRST_EFFORT,
    MAX_EFFORT,
    NEIGHBORS,
    RECALL_AT,
    choose_kind,
    count_code_bytes,
    count_lists,
    tune,
)
from agreid_plugin.retrieval.index.milvus_client import Milvus, from_row, is_lite, split_paths, to_row
from agreid_plugin.retrieval.index.searcher import MAX_HELD_OUT

TYPES = {"flat": "FLAT", "ivf": "IVF_FLAT", "hnsw": "HNSW", "pq": "IVF_PQ"}
MAX_RESULTS = 16_384  # results that Milvus gives for a query
ROWS, QUERIES = 1000, 100  # that go in one message
KEYS = ("version", "width", "fingerprint", "kind", "complete", "structure")
CHUNK = "chunk:"


class MilvusIndex(GalleryIndex):
    """An index kept by Milvus, opened.

    Args:
        uri: see `milvus_client`.
        write: whether it is going to be changed.
        token: `user:password` of a server that asks for it.
        building: open it though its build is not finished.
    """

    def __init__(self, uri: str, write: bool = False, token: str = "", building: bool = False):
        self.uri, self._write = uri, write
        self._milvus = Milvus(uri, token)
        try:
            if not self._milvus.exists:
                raise InputError(f"{uri} has no collection {self._milvus.name}: name one that exists, or build it")
            self._milvus.load(repair=write)
            self._about = self._milvus.fetch(*KEYS)
            self._check_about(building)
        except BaseException:
            self.close()
            raise
        self.width = self._about["width"]

    @classmethod
    def create(cls, uri: str, width: int, fingerprint: str, kind: str | None, token: str = "") -> MilvusIndex:
        """Make an empty index, open to be built."""
        if is_lite(uri) and kind == "pq":  # before a connection, which makes a folder
            raise InputError(f"{uri}: Milvus Lite has no pq: choose flat, ivf or hnsw, or a server")
        milvus = Milvus(uri, token, new=True)
        try:
            milvus.create(width)
            milvus.store(
                version=VERSION, width=width, fingerprint=fingerprint, kind=kind, complete=False, structure=None
            )
        finally:
            milvus.close()
        return cls(uri, write=True, token=token, building=True)

    def build(self, chunks: Iterable[Chunk]) -> None:
        """Take in the chunks that are not in, and finish: an interrupted build goes on where it was."""
        self._require_writing()
        for chunk in chunks:
            key = CHUNK + chunk.name
            if not self._milvus.fetch(key):
                # Images of a chunk that went in by half replace themselves.
                self._milvus.store(**{key: self._insert_chunk(chunk)})
        self._restructure()
        self._store(complete=True)

    def add(self, chunks: Iterable[Chunk]) -> int:
        """Take in images; see `GalleryIndex.add`."""
        self._require_writing()
        taken = sum(self._insert_chunk(chunk) for chunk in chunks)
        if self._resolve_kind() != self._structure["kind"]:
            self._restructure()
        return taken

    def search(self, vectors: FeatureArray, k: int = 10, where: Where = ANY) -> list[list[Match]]:
        """Return the images most like each query; see `GalleryIndex.search`, which looks at one more than k."""
        if k >= MAX_RESULTS:
            raise InputError(f"k={k}: Milvus gives {MAX_RESULTS - 1} results of a query at most: ask for fewer")
        return super().search(vectors, k, where)

    def info(self) -> Info:
        """Describe the index."""
        about, milvus = self._about, self._milvus
        return Info(
            uri=self.uri,
            backend="milvus-lite" if milvus.lite else "milvus",
            kind=self._structure["kind"],
            images=milvus.count(milvus.name, ""),
            width=self.width,
            fingerprint=about["fingerprint"],
            chunks=milvus.count(milvus.about_name, f'key like "{CHUNK}%"'),
            complete=about["complete"],
            effort=self._structure["effort"],
            recall=self._structure["recall"],
            size=measure_size(Path(milvus.address)) if milvus.lite else None,
        )

    def check(self) -> None:
        """Ask for images once, as many as Milvus gives for a query; checksums are left to Milvus."""
        queries = np.zeros((1, self.width), dtype=np.float32)
        queries[0, 0] = 1
        self._nearest(queries, min(MAX_RESULTS, max(1, self.info().images)), ANY)

    def close(self) -> None:
        """End the connection."""
        self._milvus.close()

    @property
    def _structure(self) -> dict[str, Any]:
        return self._about["structure"] or {"kind": "flat", "effort": 0, "most": 0, "recall": 1.0}

    def _max_results(self) -> int:
        return MAX_RESULTS

    def _nearest(self, queries: np.ndarray, k: int, where: Where) -> list[list[Match]]:
        return [
            [Match(float(hit["distance"]), from_row(hit["entity"])) for hit in hits]
            for hits in self._search(queries, k, where.milvus(), FIELDS)
        ]

    def _search(self, queries: np.ndarray, k: int, where: str, fields: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
        params = self._search_params(k, where)
        for start in range(0, len(queries), QUERIES):
            with self._milvus.readable_errors():
                yield from self._milvus.client.search(
                    self._milvus.name,
                    data=list(queries[start : start + QUERIES]),
                    limit=k,
                    filter=where,
                    output_fields=list(fields),
                    search_params={"metric_type": "IP", "params": params},
                )

    def _search_params(self, k: int, where: str) -> dict[str, int]:
        """Return the effort of a search, which grows as fewer images meet the conditions."""
        kind, effort, most = (self._structure[name] for name in ("kind", "effort", "most"))
        if kind == "flat":
            return {}
        if where:
            name = self._milvus.name
            effort = effort * self._milvus.count(name, "") // max(1, self._milvus.count(name, where))
        return {"ef": max(min(effort, most), k)} if kind == "hnsw" else {"nprobe": min(effort, most)}

    def _remove(self, where: Where) -> int:
        milvus, gone = self._milvus, 0
        for part in split_paths(where, ROWS):
            expression = part.milvus()
            gone += milvus.count(milvus.name, expression)
            with milvus.readable_errors():
                milvus.client.delete(milvus.name, filter=expression)
        return gone

    def _insert_chunk(self, chunk: Chunk) -> int:
        filled = self._with_vectors(chunk)
        rows = [to_row(entry, vector) for entry, vector in zip(filled.entries, filled.vectors, strict=True)]
        for start in range(0, len(rows), ROWS):
            with self._milvus.readable_errors():
                self._milvus.client.upsert(self._milvus.name, rows[start : start + ROWS])
        return len(rows)

    def _resolve_kind(self) -> str:
        kind = self._about["kind"] or choose_kind(self._milvus.count(self._milvus.name, ""))
        return "ivf" if kind == "pq" and self._milvus.lite else kind  # only chosen by size: `create` refuses it

    def _restructure(self) -> None:
        """Give the vectors the index for their number; its recall is measured against exact search before it."""
        kind, client, name = self._resolve_kind(), self._milvus.client, self._milvus.name
        lists = count_lists(self._milvus.count(name, ""))
        self._store(structure=None)
        self._create_index("flat", {})
        if kind == "flat":
            return
        queries = self._make_queries()
        truth = self._find_paths(queries)
        params = {
            "ivf": {"nlist": lists},
            "hnsw": {"M": NEIGHBORS, "efConstruction": BUILD_EFFORT},
            "pq": {"nlist": lists, "m": count_code_bytes(self.width), "nbits": 8},
        }[kind]
        with self._milvus.readable_errors():
            client.flush(name)
        self._create_index(kind, params)

        most = MAX_EFFORT if kind == "hnsw" else lists

        def find(effort: int) -> list[set[str]]:
            self._about["structure"] = {"kind": kind, "effort": effort, "most": most, "recall": None}
            return self._find_paths(queries)

        effort, recall = tune(find, truth, FIRST_EFFORT[kind], most)
        self._store(structure={"kind": kind, "effort": effort, "most": most, "recall": recall})

    def _create_index(self, kind: str, params: dict[str, int]) -> None:
        client, name = self._milvus.client, self._milvus.name
        with self._milvus.readable_errors():
            client.release_collection(name)
            client.drop_index(name, "vector")
            client.create_index(name, self._milvus.index(TYPES[kind], params))
            client.load_collection(name)

    def _make_queries(self) -> np.ndarray:
        """Return queries that no image is: some images, each queries by the difference of two of its neighbors."""
        with self._milvus.readable_errors():
            rows = self._milvus.client.query(self._milvus.name, limit=MAX_HELD_OUT, output_fields=["vector"])
        images = np.array([row["vector"] for row in rows], dtype=np.float32)  # (Q, D)
        queries = []
        for image, hits in zip(images, self._search(images, 3, "", ["vector"]), strict=True):
            near = [np.array(hit["entity"]["vector"], dtype=np.float32) for hit in hits]
            queries.append(image + (near[-1] - near[len(near) // 2]) / 2**0.5)
        return unit_vectors(np.stack(queries), "query")

    def _find_paths(self, queries: np.ndarray) -> list[set[str]]:
        return [{hit["path"] for hit in hits} for hits in self._search(queries, RECALL_AT, "", [])]

    def _store(self, **values: Any) -> None:
        self._milvus.store(**values)
        self._about.update(values)

    def _check_about(self, building: bool) -> None:
        version = self._about.get("version")
        if version != VERSION or not set(KEYS) <= set(self._about):
            raise InputError(f"{self.uri} is of version {version}, this program reads {VERSION}: build the index again")
        self._require_complete(self._about["complete"], building)
