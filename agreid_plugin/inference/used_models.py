"""Models that this user has made features with: which configuration and weights have which fingerprint.

An index knows the fingerprint of its model. It names no files, as a configuration may run code and an index may come
from somebody else. The files are kept in the user's own cache.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from agreid_plugin.data.atomic_write import atomic_write

KEPT = 200  # models, the last used ones


@dataclass(frozen=True)
class UsedModel:
    """What a model is built of.

    Attributes:
        config: the configuration file.
        weights: the checkpoint; None for the one that the configuration names.
        overrides: `KEY VALUE ...` on top of the configuration.
    """

    config: str
    weights: str | None
    overrides: tuple[str, ...] = ()


def remember(fingerprint: str, config: str | Path, weights: str | Path | None, overrides: Sequence[str] = ()) -> None:
    """Keep what a model is built of by its fingerprint; where that cannot be written, nothing is kept."""
    model = UsedModel(os.path.abspath(config), os.path.abspath(weights) if weights else None, tuple(overrides))
    known = {key: value for key, value in _read().items() if key != fingerprint}
    kept = {**dict(list(known.items())[1 - KEPT :]), fingerprint: asdict(model)}
    with suppress(OSError):
        _file().parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(_file()) as draft:
            draft.write_text(json.dumps(kept, indent=1), encoding="utf-8")


def recall(fingerprint: str) -> UsedModel | None:
    """Return what the model of a fingerprint is built of; None if this user has made no features with it."""
    try:
        known = UsedModel(**_read()[fingerprint])
        return UsedModel(str(known.config), known.weights and str(known.weights), tuple(map(str, known.overrides)))
    except (LookupError, TypeError):
        return None


def _file() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agreid_plugin" / "models.json"


def _read() -> dict[str, dict]:
    try:
        found = json.loads(_file().read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError):  # none, damaged, no home
        return {}
    return found if isinstance(found, dict) else {}
