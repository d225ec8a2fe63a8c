"""A contact sheet: the same people in all thirteen cameras."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from tqdm import tqdm

from agreid_plugin.errors import InputError
from agreid_plugin.synth.cameras import CAMERAS
from agreid_plugin.synth.make import shoot
from agreid_plugin.synth.plan import Frame
from agreid_plugin.synth.streams import PREVIEW, stream

LABEL = 44  # pixels above the pictures
GAP = 4
NIGHTS = 0.15  # share of pictures taken by night
_PAPER, _INK = (250, 250, 248), (40, 40, 44)


def contact_sheet(
    path: str | Path, *, ids: int = 8, size: tuple[int, int] = (256, 128), seed: int = 0, progress: bool = False
) -> Path:
    """Draw people by cameras, a row a person, and save it as PNG.

    Args:
        path: the file to write.
        ids: rows.
        size: height and width of each picture.
        seed: as of `make_agsynth`: the same seed has the same people.
        progress: show a bar.

    Returns:
        The file.
    """
    if ids < 1:
        raise InputError(f"ids is {ids}; a sheet needs at least 1 row")
    path = Path(path).expanduser()
    if path.suffix.lower() != ".png":
        raise InputError(f"{path}: a contact sheet is a PNG file, end its name with .png")
    height, width = size
    sheet = Image.new("RGB", (len(CAMERAS) * (width + GAP) + GAP, LABEL + ids * (height + GAP)), _PAPER)
    for row in tqdm(range(ids), desc="contact sheet", unit="id", disable=not progress):
        for column, frame in enumerate(_frames(seed, row + 1)):
            image = Image.fromarray(shoot(seed, frame, size)[1].image)
            sheet.paste(image, (GAP + column * (width + GAP), LABEL + row * (height + GAP)))
    _label(sheet, width)
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path)
    return path


def _frames(seed: int, pid: int) -> list[Frame]:
    nights = stream(seed, PREVIEW, pid).random(len(CAMERAS)) < NIGHTS
    return [
        Frame(pid, camera.number, camera.number, bool(night), "query")
        for camera, night in zip(CAMERAS, nights, strict=True)
    ]


def _label(sheet: Image.Image, width: int) -> None:
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=max(9, min(15, width // 8)))
    for column, camera in enumerate(CAMERAS):
        where = f"{np.mean(camera.altitude):.0f} m" if camera.aerial else f"{np.mean(camera.altitude):.1f} m"
        text = f"Cam{camera.number} {camera.platform}\n{where} high"
        draw.text((GAP + column * (width + GAP) + 2, 4), text, fill=_INK, font=font)
