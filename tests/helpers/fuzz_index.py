"""The table of a gallery index, damaged, and made to tell something else of the other files."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from fuzz_cases import changed, damaged
from fuzz_targets import Target
from hypothesis import strategies as st

from agreid_plugin.retrieval.index import Chunk, Entry, build_index, open_index
from agreid_plugin.retrieval.index.folder import TABLE

COUNT, WIDTH = 60, 4
VECTORS = np.random.default_rng(0).normal(size=(COUNT, WIDTH)).astype(np.float32)
ENTRIES = [Entry(path=f"{number}.jpg", pid=number // 4, camera=number % 3) for number in range(COUNT)]


def _make(folder: Path) -> Path:
    build_index(folder / "index", [Chunk(ENTRIES, VECTORS)], kind="hnsw")
    return folder / "index" / TABLE


def _read(file: Path) -> None:
    with open_index(file.parent) as index:
        index.check()
        index.info()
        for matches in index.search(VECTORS[:3], 5):
            assert all(match.entry.path.endswith(".jpg") for match in matches)


def _damage(original: bytes) -> st.SearchStrategy[bytes]:
    return damaged(original) | _told(original)


@st.composite
def _told(draw: st.DrawFn, original: bytes) -> bytes:
    """A table that is whole, of which one thing that it says of the index is something else."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, TABLE)
        path.write_bytes(original)
        base = sqlite3.connect(path)
        about = dict(base.execute("SELECT key, value FROM about"))
        key = draw(st.sampled_from(sorted(about)))
        value: Any = draw(changed(json.loads(about[key])))
        base.execute("UPDATE about SET value = ? WHERE key = ?", (json.dumps(value), key))
        base.commit()
        base.close()
        return path.read_bytes()


INDEX_TARGETS = [Target("gallery index", _make, _read, _damage, also=("index",))]
