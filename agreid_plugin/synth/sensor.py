"""Camera sensor, from light to pixels: resolution, blur, white balance, exposure, tone, noise, compression."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter

from agreid_plugin.synth.cameras import Camera
from agreid_plugin.synth.light import Light
from agreid_plugin.synth.solids import Array

QUALITY = 92  # of the written files, the same for all
MEAN_LIGHT = 0.2  # linear light that a metering camera makes of a picture


@dataclass(frozen=True)
class Film:
    """A camera with a tone curve, behind the air in front of it.

    Attributes:
        metering: how far the exposure follows the picture's own light: 0 not at all, 1 to the same mean.
        haze: share of the light that is the air's.
        air: linear RGB of the haze.
        focus: blur of the lens in native pixels.
        curve: slope of the display's curve at mid gray, 1 for none; a steep one crushes blacks and blows whites.
        mid: the gray that stays.
    """

    metering: float
    haze: float
    air: tuple[float, float, float]
    focus: float
    curve: float
    mid: float


@dataclass(frozen=True)
class Sensor:
    """Sensor settings of one picture.

    Attributes:
        balance: gains of red, green and blue.
        exposure: stops over or under.
        contrast: exponent of the tone curve, 1 for none.
        saturation: 1 for none.
        blur: motion in native pixels, right and down.
        grain: standard deviation of the noise at mid gray, of 1.
        quality: JPEG quality of the stream the crop is cut from.
        film: the camera's tone curve, focus and haze, None for a plain one.
    """

    balance: tuple[float, float, float]
    exposure: float
    contrast: float
    saturation: float
    blur: tuple[float, float]
    grain: float
    quality: int
    film: Film | None = None


def draw_sensor(rng: np.random.Generator, camera: Camera, light: Light) -> Sensor:
    """Draw one picture's imperfections; at night there is more of each."""
    warmth, green = rng.normal(0, 0.07), rng.normal(0, 0.03)
    balance = np.array(camera.tint) * (1 + warmth, 1 + green, 1 - warmth)
    length, angle = rng.exponential(0.8 + 0.7 * light.night + 0.3 * camera.aerial), rng.uniform(0, 2 * np.pi)
    length = min(length, 4.0)
    return Sensor(
        balance=tuple(balance),
        exposure=rng.normal(-0.55 if light.night else 0.0, 0.3),
        contrast=rng.normal(1.0, 0.09),
        saturation=rng.normal(0.78 if light.night else 0.96, 0.12),
        blur=(length * np.cos(angle), length * np.sin(angle)),
        grain=rng.uniform(0.008, 0.02) * (2.4 if light.night else 1.0),
        quality=int(rng.integers(45, 80) if camera.aerial else rng.integers(60, 92)),
    )


def _resize(picture: Array, shape: tuple[int, int]) -> Array:
    """Resize (H, W, 3) linear light, averaging where it shrinks."""
    bands = [Image.fromarray(np.ascontiguousarray(picture[..., band])) for band in range(3)]
    return np.stack([np.asarray(band.resize(shape[::-1], Image.Resampling.BOX)) for band in bands], axis=-1)


def _smear(picture: Array, blur: tuple[float, float]) -> Array:
    """Average copies shifted along the motion."""
    steps = int(np.ceil(max(abs(blur[0]), abs(blur[1]))))
    if steps < 1:
        return picture
    height, width, _ = picture.shape
    padded = np.pad(picture, ((steps, steps), (steps, steps), (0, 0)), mode="edge")
    total = np.zeros_like(picture)
    for share in np.linspace(-0.5, 0.5, steps + 1):
        column, row = steps + round(share * blur[0]), steps + round(share * blur[1])
        total += padded[row : row + height, column : column + width]
    return total / np.float32(steps + 1)


def _meter(picture: Array, film: Film) -> Array:
    """Expose for the picture's own light, blur, and put haze in front."""
    gain = (MEAN_LIGHT / max(float(picture.mean()), 1e-3)) ** film.metering
    if film.focus:
        picture = gaussian_filter(picture, (film.focus, film.focus, 0), truncate=2.5)
    air = np.array(film.air, dtype=np.float32)
    return picture * np.float32(gain * (1 - film.haze)) + air * np.float32(film.haze)


def _tone(picture: Array, sensor: Sensor) -> Array:
    """Apply white balance, exposure, saturation and the tone curve; linear light in, 0..1 for display out."""
    gains = np.array(sensor.balance, dtype=np.float32) * np.float32(0.78 * 2**sensor.exposure)
    picture = picture * gains
    gray = picture @ np.array((0.3, 0.6, 0.1), dtype=np.float32)
    picture = np.maximum(gray[..., None] + (picture - gray[..., None]) * np.float32(sensor.saturation), 0)
    picture = picture * (1 + picture * np.float32(0.12)) / (1 + picture * np.float32(0.45))  # a soft shoulder
    return np.clip(picture, 0, 1) ** np.float32(sensor.contrast / 2.2)


def develop(
    picture: Array, sensor: Sensor, rng: np.random.Generator, native: tuple[int, int], size: tuple[int, int]
) -> NDArray[np.uint8]:
    """Turn rendered light into the image a dataset would hold.

    Args:
        picture: (H, W, 3) linear light.
        sensor: the imperfections.
        rng: of the noise.
        native: height and width of the crop in the camera's own pixels.
        size: height and width of the result.
    """
    light = _resize(picture, native)
    if sensor.film:
        light = _meter(light, sensor.film)
    seen = _tone(_smear(light, sensor.blur), sensor)
    if sensor.film:
        seen = (seen - np.float32(sensor.film.mid)) * np.float32(sensor.film.curve) + np.float32(sensor.film.mid)
    seen += rng.standard_normal(seen.shape, dtype=np.float32) * np.float32(sensor.grain)
    crop = Image.fromarray((np.clip(seen, 0, 1) * 255 + 0.5).astype(np.uint8))
    stream = io.BytesIO()
    crop.save(stream, "JPEG", quality=sensor.quality)
    crop = Image.open(stream)
    return np.asarray(crop.resize(size[::-1], Image.Resampling.BICUBIC))


def encode(image: NDArray[np.uint8]) -> bytes:
    """Return the bytes of the written file."""
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "JPEG", quality=QUALITY)
    return stream.getvalue()
