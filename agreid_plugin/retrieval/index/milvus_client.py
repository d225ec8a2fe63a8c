"""Milvus client of an index: one connection, two collections, rows to entries and back, errors in one line.

`gallery.db` is Milvus Lite, which runs in this process and keeps its data in the folder of that name; `http://host:19530`
is a server or a cluster. `#name` behind either chooses the collection. A second collection, `name_about`, keeps what is
known of the whole index and which chunks are in.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from agreid_plugin.errors import InputError, first_line
from agreid_plugin.retrieval.index.entries import FIELDS, MAX_PATH_BYTES, NO_TIME, Entry, Where, quote

COLLECTION = "gallery"
NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
TIMEOUT = 10  # seconds to find a server
MAX_TEXT_BYTES = 60_000  # bytes of a text in Milvus, just below its limit
_open: Counter[str] = Counter()
"""Folders of Milvus Lite -> how many connections of this process use them."""


class Milvus:
    """A connection.

    Args:
        uri: `gallery.db` or `http://host:19530`, perhaps with `#collection`.
        token: `user:password` of a server that asks for it.
        new: make the folder of Milvus Lite if it does not exist.

    Attributes:
        lite: whether it runs in this process.
        name: the collection.
        about_name: the one with what is known of the index.
        client: the connection of pymilvus.
    """

    def __init__(self, uri: str, token: str = "", new: bool = False):
        self.uri = uri
        self.address, _, name = uri.partition("#")
        self.name = name or COLLECTION
        self.about_name, self.lite = f"{self.name}_about", is_lite(self.address)
        if not NAME.fullmatch(self.name):
            raise InputError(f"collection {self.name!r} should be named with letters, digits and _")
        if self.lite:
            self._check_folder(new)
        library = _library()  # first: `readable_errors` needs it
        with self.readable_errors():
            self.client = library.MilvusClient(self.address, token=token, timeout=TIMEOUT)
        if self.lite:
            _open[self._path] += 1

    @property
    def _path(self) -> str:
        return str(Path(self.address).absolute())

    @property
    def exists(self) -> bool:
        """Whether the collection is there."""
        with self.readable_errors():
            return self.client.has_collection(self.about_name)

    def create(self, width: int) -> None:
        """Make both collections; vectors are searched exactly until they have another index."""
        kinds, make = _library().DataType, self.client.create_schema
        schema = make(auto_id=False, enable_dynamic_field=False)
        schema.add_field("path", kinds.VARCHAR, is_primary=True, max_length=MAX_PATH_BYTES)
        for name, kind in (("view", kinds.INT8), ("camera", kinds.INT32), ("pid", kinds.INT64), ("time", kinds.DOUBLE)):
            schema.add_field(name, kind)
        schema.add_field("platform", kinds.VARCHAR, max_length=1024)
        schema.add_field("tags", kinds.JSON)
        schema.add_field("vector", kinds.FLOAT_VECTOR, dim=width)
        about = make(auto_id=False, enable_dynamic_field=False)
        about.add_field("key", kinds.VARCHAR, is_primary=True, max_length=1024)
        about.add_field("value", kinds.VARCHAR, max_length=MAX_TEXT_BYTES)
        about.add_field("vector", kinds.FLOAT_VECTOR, dim=2)  # no collection may be without
        for name, fields in ((self.name, schema), (self.about_name, about)):  # the second says that all is there
            with self.readable_errors():
                if self.client.has_collection(name):  # of a creation that did not finish
                    self.client.drop_collection(name)
                self.client.create_collection(
                    name, schema=fields, index_params=self.index("FLAT", {}), consistency_level="Strong"
                )

    def load(self, repair: bool) -> None:
        """Make both collections ready; `repair` gives back the index that an interrupted change took away."""
        with self.readable_errors():
            if repair and not self.client.list_indexes(self.name):
                self.client.create_index(self.name, self.index("FLAT", {}))
            for name in (self.about_name, self.name):
                self.client.load_collection(name)

    def index(self, kind: str, params: dict[str, int]) -> Any:
        """Return the parameters of an index of the vectors."""
        built = self.client.prepare_index_params()
        built.add_index("vector", index_type=kind, metric_type="IP", params=params)
        return built

    def store(self, **values: Any) -> None:
        """Keep something of the whole index."""
        rows = [{"key": key, "value": json.dumps(value), "vector": [0.0, 1.0]} for key, value in values.items()]
        with self.readable_errors():
            self.client.upsert(self.about_name, rows)

    def fetch(self, *keys: str) -> dict[str, Any]:
        """Return what was kept under keys, where there is something."""
        wanted = f"key in [{', '.join(map(quote, keys))}]"
        with self.readable_errors():
            rows = self.client.query(self.about_name, filter=wanted, output_fields=["key", "value"])
        try:
            return {row["key"]: json.loads(row["value"]) for row in rows}
        except json.JSONDecodeError:
            raise InputError(f"collection {self.about_name} of {self.uri} is damaged: build the index again") from None

    def count(self, name: str, where: str) -> int:
        """Return how many rows of a collection meet a condition."""
        with self.readable_errors():
            return self.client.query(name, filter=where, output_fields=["count(*)"])[0]["count(*)"]

    def close(self) -> None:
        """End the connection, and Milvus Lite with the last one, so that another process may have its folder."""
        with self.readable_errors():
            self.client.close()
        if self.lite:
            _open[self._path] -= 1
            if not _open[self._path]:
                from milvus_lite.server_manager import server_manager_instance

                server_manager_instance.release_server(self._path)

    @contextmanager
    def readable_errors(self) -> Iterator[None]:
        """Say in one line what Milvus has against something."""
        from pymilvus.exceptions import MilvusException

        try:
            yield
        except MilvusException as error:
            line = first_line(error) if not error.message else error.message.splitlines()[0]
            if self.lite and "Open local milvus failed" in line:
                line = "cannot be opened: another program has it open, or it is damaged"
            raise InputError(f"{self.uri}: {line}") from None

    def _check_folder(self, new: bool) -> None:
        path = Path(self.address)
        if path.is_file():
            raise InputError(f"{path} is a file of Milvus Lite before 3.0, or none of it: name another")
        if not new and not path.is_dir():
            raise InputError(f"{path} has no gallery index: name one that exists, or build it")
        if not path.absolute().parent.is_dir():
            raise InputError(f"{path}: its folder does not exist")


def is_milvus(uri: str) -> bool:
    """Tell whether an address is one of Milvus: a server, or a name that ends with `.db`."""
    address = uri.partition("#")[0]
    return not is_lite(address) or address.endswith(".db")


def is_lite(address: str) -> bool:
    """Tell whether an address is on this machine's disk."""
    return "://" not in address


def _library() -> Any:
    try:
        import milvus_lite  # noqa: F401
        import pymilvus
    except ImportError as error:
        raise InputError(f"an index of Milvus needs {error.name}: pip install pymilvus milvus-lite") from None
    # They also print what they raise, on many lines, and warn of features that Milvus Lite lacks.
    for name in ("pymilvus", "milvus_lite", "grpc._server"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    return pymilvus


def to_row(entry: Entry, vector: np.ndarray) -> dict[str, Any]:
    """Return an image as Milvus keeps it."""
    values = dict(zip(FIELDS, entry.fields, strict=True))
    time = NO_TIME if entry.time is None else entry.time
    return {**values, "time": time, "tags": dict(entry.tags), "vector": vector}


def from_row(row: dict[str, Any]) -> Entry:
    """Return an image of what Milvus gave."""
    time = None if row["time"] == NO_TIME else row["time"]
    values = {**row, "time": time, "tags": json.dumps(row["tags"])}
    return Entry.from_fields([values[name] for name in FIELDS])


def split_paths(where: Where, size: int) -> Iterator[Where]:
    """Give conditions with `size` paths at a time, as Milvus does not read any number of them."""
    starts = range(0, max(1, len(where.paths)), size)
    return (replace(where, paths=where.paths[start : start + size]) for start in starts)
