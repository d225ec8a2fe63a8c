"""An exported model as the appearance model of a tracker, by the calls that BoxMOT's trackers make.

Shapes: N boxes, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agreid_plugin.deploy.model import ExportedModel
from agreid_plugin.errors import InputError

PLAIN = (4, 6)  # columns of boxes: corners, or with confidence and class behind them


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
        self.warmup()

    def get_features(self, xyxys: Any, img: np.ndarray) -> np.ndarray:
        """Return one feature a box, of length 1: (N, D) of float32, (0, D) without boxes.

        Args:
            xyxys: left, top, right and bottom in pixels, (N, 4), as `crops` takes them.
            img: the frame as OpenCV has it: (rows, columns, 3) of uint8, blue first.
        """
        features = self.model(crops(xyxys, img), self.view, order="BGR")
        return features / np.linalg.norm(features, axis=1, keepdims=True).clip(min=1e-12)

    def warmup(self, imgsz: Sequence[Sequence[int]] = ((256, 128, 3),)) -> None:
        """Run the model once on a black frame of this size, so that the first real one does not wait."""
        rows, columns = imgsz[0][:2]
        self.get_features(np.array([[0, 0, columns, rows]]), np.zeros((rows, columns, 3), np.uint8))


def crops(xyxys: Any, img: np.ndarray) -> list[np.ndarray]:
    """Cut boxes out of a frame.

    Args:
        xyxys: left, top, right and bottom in pixels, (N, 4); confidence and class may stand behind them. What is
            outside of the frame is cut off; a box of which nothing is left, or that is no number, is one black pixel.
        img: the frame, (rows, columns, 3) of uint8.

    Example:
        >>> import numpy as np
        >>> frame = np.full((100, 200, 3), 255, dtype=np.uint8)
        >>> boxes = [[10, 20, 40, 80], [180, -5, 230, 50], [300, 0, 400, 50]]  # inside, at the border, outside
        >>> [(cut.shape[:2], cut.max().item()) for cut in crops(boxes, frame)]
        [((60, 30), 255), ((50, 20), 255), ((1, 1), 0)]
        >>> crops([], frame)
        []
    """
    boxes = _boxes(xyxys)
    if not isinstance(img, np.ndarray) or img.ndim != 3 or img.shape[2] != 3 or img.dtype != np.uint8:
        raise InputError("the frame should be (rows, columns, 3) of uint8, blue first, as cv2 reads it")
    return [_crop(box, img) for box in boxes]


def _boxes(xyxys: Any) -> np.ndarray:
    boxes = np.asarray(xyxys, dtype=np.float64)
    if not boxes.size:
        return boxes.reshape(0, 4)
    boxes = np.atleast_2d(boxes)
    if boxes.ndim != 2 or boxes.shape[1] not in PLAIN:
        raise InputError(f"boxes={boxes.shape} should be (boxes, 4): left, top, right, bottom; none is turned")
    return boxes[:, :4]


def _crop(box: np.ndarray, img: np.ndarray) -> np.ndarray:
    """Cut a box out of a frame; a black pixel stands for an empty one."""
    rows, columns = img.shape[:2]
    if np.isfinite(box).all():
        left, top, right, bottom = box.round().clip(0, (columns, rows, columns, rows)).astype(int)
        if right > left and bottom > top:
            return img[top:bottom, left:right]
    return np.zeros((1, 1, 3), np.uint8)
