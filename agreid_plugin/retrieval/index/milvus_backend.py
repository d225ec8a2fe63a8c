"""The engine for galleries that outgrow one machine: an index kept by Milvus, or by Milvus Lite in this process.

Both are asked with the same calls. Sharding, replicas and what is in memory are Milvus' own business.
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
from agreid_plugin.retrieval.index.folder import size_of
from agreid_plugin.retrieval.index.index_types import (
    BUILD_EFFORT,
    FIRST_EFFORT,
    LARGEST_EFFORT,
    NEIGHBORS,
    RECALL_AT,
    code_bytes,
    kind_for,
    lists_for,
    tune,
)
from agreid_plugin.retrieval.index.milvus_client import Milvus, from_row, is_lite, parts, to_row
from agreid_plugin.retrieval.index.searcher import HELD_OUT

TYPES = {"flat": "FLAT", "ivf": "IVF_FLAT", "hnsw": "HNSW", "pq": "IVF_PQ"}
MOST = 16_384  # results that Milvus gives for a query
ROWS, QUERIES = 1000, 100  # that go in one message
KEYS = ("version", "width", "maker", "kind", "complete", "structure")
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
            self._about = self._milvus.asked(*KEYS)
            self._check_about(building)
        except BaseException:
            self.close()
            raise
        self.width = self._about["width"]

    @classmethod
    def create(cls, uri: str, width: int, maker: str, kind: str | None, token: str = "") -> MilvusIndex:
        """Make an empty index, open to be built."""
        if is_lite(uri) and kind == "pq":  # before a connection, which makes a folder
            raise InputError(f"{uri}: Milvus Lite has no pq: choose flat, ivf or hnsw, or a server")
        milvus = Milvus(uri, token, new=True)
        try:
            milvus.create(width)
            milvus.tell(version=VERSION, width=width, maker=maker, kind=kind, complete=False, structure=None)
        finally:
            milvus.close()
        return cls(uri, write=True, token=token, building=True)

    def build(self, chunks: Iterable[Chunk]) -> None:
        """Take in the chunks that are not in, and finish: an interrupted build goes on where it was."""
        self._require_writing()
        for chunk in chunks:
            key = CHUNK + chunk.name
            if not self._milvus.asked(key):
                # Images of a chunk that went in by half replace themselves.
                self._milvus.tell(**{key: self._take(chunk)})
        self._restructure()
        self._tell(complete=True)

    def add(self, chunks: Iterable[Chunk]) -> int:
        """Take in images; see `GalleryIndex.add`."""
        self._require_writing()
        taken = sum(self._take(chunk) for chunk in chunks)
        if self._wanted_kind() != self._structure["kind"]:
            self._restructure()
        return taken

    def search(self, vectors: FeatureArray, k: int = 10, where: Where = ANY) -> list[list[Match]]:
        """Return the images most like each query; see `GalleryIndex.search`, which looks at one more than k."""
        if k >= MOST:
            raise InputError(f"k={k}: Milvus gives {MOST - 1} results of a query at most: ask for fewer")
        return super().search(vectors, k, where)

    def info(self) -> Info:
        """Tell what the index is."""
        about, milvus = self._about, self._milvus
        return Info(
            uri=self.uri,
            engine="milvus-lite" if milvus.lite else "milvus",
            kind=self._structure["kind"],
            images=milvus.count(milvus.name, ""),
            width=self.width,
            maker=about["maker"],
            chunks=milvus.count(milvus.about_name, f'key like "{CHUNK}%"'),
            complete=about["complete"],
            effort=self._structure["effort"],
            recall=self._structure["recall"],
            size=size_of(Path(milvus.address)) if milvus.lite else None,
        )

    def check(self) -> None:
        """Ask for images once, as many as Milvus gives for a query; checksums are Milvus' own business."""
        queries = np.zeros((1, self.width), dtype=np.float32)
        queries[0, 0] = 1
        self._nearest(queries, min(MOST, max(1, self.info().images)), ANY)

    def close(self) -> None:
        """End the connection."""
        self._milvus.close()

    @property
    def _structure(self) -> dict[str, Any]:
        return self._about["structure"] or {"kind": "flat", "effort": 0, "most": 0, "recall": 1.0}

    def _most(self) -> int:
        return MOST

    def _nearest(self, queries: np.ndarray, k: int, where: Where) -> list[list[Match]]:
        return [
            [Match(float(hit["distance"]), from_row(hit["entity"])) for hit in hits]
            for hits in self._hits(queries, k, where.milvus(), FIELDS)
        ]

    def _hits(self, queries: np.ndarray, k: int, where: str, fields: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
        params = self._looking(k, where)
        for start in range(0, len(queries), QUERIES):
            with self._milvus.told():
                yield from self._milvus.client.search(
                    self._milvus.name,
                    data=list(queries[start : start + QUERIES]),
                    limit=k,
                    filter=where,
                    output_fields=list(fields),
                    search_params={"metric_type": "IP", "params": params},
                )

    def _looking(self, k: int, where: str) -> dict[str, int]:
        """Return how much is looked at: the more, the fewer images meet the conditions."""
        kind, effort, most = (self._structure[name] for name in ("kind", "effort", "most"))
        if kind == "flat":
            return {}
        if where:
            name = self._milvus.name
            effort = effort * self._milvus.count(name, "") // max(1, self._milvus.count(name, where))
        return {"ef": max(min(effort, most), k)} if kind == "hnsw" else {"nprobe": min(effort, most)}

    def _remove(self, where: Where) -> int:
        milvus, gone = self._milvus, 0
        for part in parts(where, ROWS):
            expression = part.milvus()
            gone += milvus.count(milvus.name, expression)
            with milvus.told():
                milvus.client.delete(milvus.name, filter=expression)
        return gone

    def _take(self, chunk: Chunk) -> int:
        made = self._made(chunk)
        rows = [to_row(entry, vector) for entry, vector in zip(made.entries, made.vectors, strict=True)]
        for start in range(0, len(rows), ROWS):
            with self._milvus.told():
                self._milvus.client.upsert(self._milvus.name, rows[start : start + ROWS])
        return len(rows)

    def _wanted_kind(self) -> str:
        kind = self._about["kind"] or kind_for(self._milvus.count(self._milvus.name, ""))
        return "ivf" if kind == "pq" and self._milvus.lite else kind  # by size alone: asked for, it was refused

    def _restructure(self) -> None:
        """Give the vectors the index for their number; its recall is measured against exact search before it."""
        kind, client, name = self._wanted_kind(), self._milvus.client, self._milvus.name
        lists = lists_for(self._milvus.count(name, ""))
        self._tell(structure=None)
        self._give("flat", {})
        if kind == "flat":
            return
        queries = self._unseen()
        truth = self._found(queries)
        params = {
            "ivf": {"nlist": lists},
            "hnsw": {"M": NEIGHBORS, "efConstruction": BUILD_EFFORT},
            "pq": {"nlist": lists, "m": code_bytes(self.width), "nbits": 8},
        }[kind]
        with self._milvus.told():
            client.flush(name)
        self._give(kind, params)

        most = LARGEST_EFFORT if kind == "hnsw" else lists

        def find(effort: int) -> list[set[str]]:
            self._about["structure"] = {"kind": kind, "effort": effort, "most": most, "recall": None}
            return self._found(queries)

        effort, recall = tune(find, truth, FIRST_EFFORT[kind], most)
        self._tell(structure={"kind": kind, "effort": effort, "most": most, "recall": recall})

    def _give(self, kind: str, params: dict[str, int]) -> None:
        client, name = self._milvus.client, self._milvus.name
        with self._milvus.told():
            client.release_collection(name)
            client.drop_index(name, "vector")
            client.create_index(name, self._milvus.index(TYPES[kind], params))
            client.load_collection(name)

    def _unseen(self) -> np.ndarray:
        """Return queries that no image is: some images, each moved by the difference of two of its neighbors."""
        with self._milvus.told():
            rows = self._milvus.client.query(self._milvus.name, limit=HELD_OUT, output_fields=["vector"])
        images = np.array([row["vector"] for row in rows], dtype=np.float32)  # (Q, D)
        moved = []
        for image, hits in zip(images, self._hits(images, 3, "", ["vector"]), strict=True):
            near = [np.array(hit["entity"]["vector"], dtype=np.float32) for hit in hits]
            moved.append(image + (near[-1] - near[len(near) // 2]) / 2**0.5)
        return unit_vectors(np.stack(moved), "query")

    def _found(self, queries: np.ndarray) -> list[set[str]]:
        return [{hit["path"] for hit in hits} for hits in self._hits(queries, RECALL_AT, "", [])]

    def _tell(self, **values: Any) -> None:
        self._milvus.tell(**values)
        self._about.update(values)

    def _check_about(self, building: bool) -> None:
        version = self._about.get("version")
        if version != VERSION or not set(KEYS) <= set(self._about):
            raise InputError(f"{self.uri} is of version {version}, this program reads {VERSION}: build the index again")
        self._require_complete(self._about["complete"], building)
