"""Metadata of an exported model, as JSON inside its file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from agreid_plugin.errors import InputError, first_line

KEY = "agreid_plugin"
"""Name of the JSON: in ONNX's metadata, OpenVINO's rt_info, and as a file within TorchScript's archive."""

INTERPOLATIONS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""Ways of resizing, each at PIL's number for it."""


@dataclass(frozen=True)
class ModelMetadata:
    """Everything a program has to know to use an exported file.

    Attributes:
        package: the version of this package that wrote it.
        method: the model's name.
        fingerprint: hash of weights and settings, as `fastreid index` keeps it: only equal ones compare.
        tower: `image` or `text`.
        inputs: names of the graph's inputs, in their order; the first is `images`, (B, 3, H, W) of uint8 with red
            first, or `tokens`, (B, L) of int64; `views` and `platforms` are (B,) of int64.
        width: D of the output `features`, (B, D) of float32.
        normalized: whether features have length 1.
        precision: of the weights: `float32` or `int8`.
        views: source of the views: `given`, `predicted` by the graph, or empty if the method needs none.
        unknown_views: whether -1 may be given, for which the graph predicts.
        labels: words for a view -> its number for `views` and the one for `platforms`.
        size: H and W of images.
        interpolation: the way PIL resizes images to this size; one of `INTERPOLATIONS`.
        channels: the order of the colors in `images`.
        layout: the order of the axes of `images`.
        pixels: type and range of the numbers in `images`.
        text_length: L, zeros behind the end of a sentence.
    """

    package: str
    method: str
    fingerprint: str
    tower: str
    inputs: tuple[str, ...]
    width: int
    normalized: bool
    precision: str = "float32"
    views: str = ""
    unknown_views: bool = False
    labels: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    size: tuple[int, int] = (0, 0)
    interpolation: str = ""
    channels: str = "RGB"
    layout: str = "NCHW"
    pixels: str = "uint8, 0 to 255; normalized in the graph"
    text_length: int = 0

    def to_json(self) -> str:
        """Return the text that a file holds."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | None, path: object) -> ModelMetadata:
        """Read the text that a file holds.

        Raises:
            InputError: the file has no text, or not one that `fastreid export` wrote.
        """
        if not text:
            raise InputError(f"{path} does not say what it is: it was not written by fastreid export")
        try:
            return cls(**_check(json.loads(text)))
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"{path} has damaged metadata ({first_line(error)}): export it again") from None


def _check(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise TypeError("it should be an object")
    found = {each.name: found[each.name] for each in fields(ModelMetadata) if each.name in found}
    for name in ("package", "method", "fingerprint", "tower", "precision", "views", "interpolation"):
        if not isinstance(found[name], str):
            raise TypeError(f"{name} should be a text")
    found["inputs"] = tuple(str(name) for name in found["inputs"])
    found["labels"] = {str(word): (int(view), int(other)) for word, (view, other) in dict(found["labels"]).items()}
    rows, columns = found["size"]
    found["size"] = (int(rows), int(columns))
    images = found["tower"] == "image"
    if images and (min(found["size"]) < 1 or found["interpolation"] not in INTERPOLATIONS):
        raise ValueError(f"images of {rows}x{columns}, made by {found['interpolation']!r}")
    return found
