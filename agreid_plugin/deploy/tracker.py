"""An exported model as the appearance model of a tracker, by the calls that BoxMOT's trackers make.

Shapes: N boxes, D width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agreid_plugin.deploy.model import ExportedModel
from agreid_plugin.errors import InputError


class TrackerReID:
    """Features of the people in a frame's boxes; stands where a tracker has its ReID model.

    BoxMOT's trackers, from version 19 on, take it when they are made: `BotSort(reid_model=TrackerReID("visa.onnx"))`.
    Earlier ones have it set, `tracker.model = reid`. Up to 23 features may be passed along instead:
    `tracker.update(dets, frame, reid.get_features(dets[:, :4], frame))`.

    Args:
        path: a file of `fastreid export`.
        view: of the camera, `aerial` or `ground`; None where the model needs none or tells it by itself.
        batch_size: boxes that go through the model together.
        threads: that the runtime may use; 0 leaves that to it.
    """

    def __init__(self, path: str | Path, view: str | int | None = None, batch_size: int = 64, threads: int = 0):
        self.model, self.view = ExportedModel(path, batch_size, threads), view
        self._random = np.random.default_rng(0)
        self.warmup()

    def get_features(self, xyxys: Any, img: np.ndarray) -> np.ndarray:
        """Return one feature a box, of length 1: (N, D) of float32, (0, D) without boxes.

        A box without a pixel in the frame gets a random direction, a new one every time. It is nearly at a right angle
        to every other feature: cosines are normally distributed around 0 with a deviation of 1/sqrt(D). The random
        numbers start anew with each `TrackerReID`, so that a video gives the same features again.

        Args:
            xyxys: left, top, right and bottom in pixels, (N, 4), as `crops` takes them.
            img: the frame as OpenCV has it: (rows, columns, 3) of uint8, blue first.
        """
        cuts = crops(xyxys, img)
        seen = np.array([cut.size > 0 for cut in cuts], dtype=bool)
        features = np.empty((len(cuts), self.model.metadata.width), np.float32)
        features[seen] = self.model([cut for cut in cuts if cut.size], self.view, order="BGR")
        features[~seen] = self._random.standard_normal(features[~seen].shape)
        return features / np.linalg.norm(features, axis=1, keepdims=True).clip(min=1e-12)

    def warmup(self, imgsz: Sequence[Sequence[int]] = ((256, 128, 3),)) -> None:
        """Run the model once on a black frame of this size, so that the first real one does not wait."""
        rows, columns = imgsz[0][:2]
        self.get_features(np.array([[0, 0, columns, rows]]), np.zeros((rows, columns, 3), np.uint8))


def crops(xyxys: Any, img: np.ndarray) -> list[np.ndarray]:
    """Cut boxes out of a frame.

    Args:
        xyxys: left, top, right and bottom in pixels, (N, 4). What is outside of the frame is cut off; of a box without
            a pixel in it nothing is left, an array of size 0.
        img: the frame, (rows, columns, 3) of uint8.

    Raises:
        InputError: a box has other columns, is inverted or not finite; or the frame is none.

    Example:
        >>> import numpy as np
        >>> frame = np.full((100, 200, 3), 255, dtype=np.uint8)
        >>> boxes = [[10, 20, 40, 80], [180, -5, 230, 50], [300, 0, 400, 50]]  # inside, at the border, outside
        >>> [cut.shape[:2] for cut in crops(boxes, frame)]
        [(60, 30), (50, 20), (50, 0)]
        >>> crops([], frame)
        []
    """
    if not isinstance(img, np.ndarray) or img.ndim != 3 or img.shape[2] != 3 or img.dtype != np.uint8:
        raise InputError("the frame should be (rows, columns, 3) of uint8, blue first, as cv2 reads it")
    rows, columns = img.shape[:2]
    corners = _boxes(xyxys).round().clip(0, (columns, rows, columns, rows)).astype(int)
    return [img[top:bottom, left:right] for left, top, right, bottom in corners]


def _boxes(xyxys: Any) -> np.ndarray:
    boxes = np.asarray(xyxys, dtype=np.float64)
    if not boxes.size:
        return boxes.reshape(0, 4)
    boxes = np.atleast_2d(boxes)
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise InputError(
            f"boxes={boxes.shape} should be (boxes, 4): left, top, right, bottom; of detections, dets[:, :4]; "
            "none is turned"
        )
    for row, box in enumerate(boxes.tolist()):
        left, top, right, bottom = box
        if not all(map(math.isfinite, box)):
            raise InputError(f"box {row} of {len(boxes)}, {box}, is not finite: leave it out")
        if right < left or bottom < top:
            raise InputError(f"box {row} of {len(boxes)}, {box}, is inverted: give left, top, right, bottom")
    return boxes
