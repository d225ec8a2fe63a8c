"""Images as people have them, all made the same pictures."""

import numpy as np
import pytest
import torch
from PIL import Image

from agreid_plugin.data.images import iter_pictures
from agreid_plugin.errors import InputError
from agreid_plugin.types import PLATFORMS, UNKNOWN, View

PIXELS = np.random.default_rng(0).integers(0, 256, size=(8, 4, 3), dtype=np.uint8)
TENSOR = torch.from_numpy(PIXELS).permute(2, 0, 1)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("b.png", "a.png", "deep/c.png"):
        Image.fromarray(PIXELS).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    return tmp_path


def read(images, **options) -> list[np.ndarray]:
    return [np.array(picture.read()) for picture in iter_pictures(images, **options)]


@pytest.mark.parametrize(
    ("images", "count"),
    [
        (PIXELS, 1),
        (np.stack([PIXELS] * 3), 3),
        (TENSOR, 1),
        (torch.stack([TENSOR] * 2), 2),
        (TENSOR / 255, 1),
        (TENSOR.double() / 255, 1),
        (Image.fromarray(PIXELS), 1),
        ([Image.fromarray(PIXELS), PIXELS, [TENSOR]], 3),
        ((PIXELS for _ in range(5)), 5),
        ([], 0),
    ],
)
def test_every_form_gives_the_same_pixels(images, count):
    found = read(images)
    assert len(found) == count
    assert all((each == PIXELS).all() for each in found)


def test_the_order_of_colors_is_said(folder):
    assert (read(PIXELS[..., ::-1], order="BGR")[0] == PIXELS).all()
    assert (read(TENSOR.flip(0), order="BGR")[0] == PIXELS).all()
    assert (read(Image.fromarray(PIXELS), order="BGR")[0] == PIXELS).all()  # PIL and files know their order
    assert (read(folder / "a.png", order="BGR")[0] == PIXELS).all()
    with pytest.raises(InputError, match=r"order 'bgr' unknown \(did you mean BGR\?\)"):
        iter_pictures(PIXELS, order="bgr")


def test_folders_are_sorted_and_mixed_with_files(folder):
    names = [picture.path for picture in iter_pictures([folder / "b.png", str(folder)])]
    assert names == [str(folder / name) for name in ("b.png", "a.png", "b.png", "deep/c.png")]


def test_gray_and_turned_images_are_as_read_from_files(tmp_path):
    turned = Image.fromarray(PIXELS)
    turned.getexif()[0x0112] = 6
    turned.save(tmp_path / "t.jpg", exif=turned.getexif(), quality=100)
    with Image.open(tmp_path / "t.jpg") as opened:
        assert (read(opened)[0] == read(tmp_path / "t.jpg")[0]).all()
        assert read(opened)[0].shape == (4, 8, 3)
    assert read(Image.fromarray(PIXELS[..., 0]))[0].shape == (8, 4, 3)


def test_views_of_all_and_of_each():
    three = [PIXELS] * 3
    assert [picture.view for picture in iter_pictures(three)] == [UNKNOWN] * 3
    assert [picture.view for picture in iter_pictures(three, "Aerial")] == [View.AERIAL] * 3
    assert [picture.view for picture in iter_pictures(three, View.GROUND)] == [View.GROUND] * 3
    each = ["wearable", None, View.AERIAL]
    assert [picture.view for picture in iter_pictures(three, each)] == [1, UNKNOWN, 0]
    platforms = [picture.platform for picture in iter_pictures(three, each)]
    assert platforms == [PLATFORMS.index("wearable"), UNKNOWN, UNKNOWN]
    assert [picture.view for picture in iter_pictures(three, np.array([1, -1, 0]))] == [1, UNKNOWN, 0]
    assert [picture.view for picture in iter_pictures(three, torch.tensor([1, -1, 0]))] == [1, UNKNOWN, 0]


@pytest.mark.parametrize(
    ("images", "views", "words"),
    [
        (PIXELS.astype(float), None, r"an array of float64 \(8, 4, 3\) is no image"),
        (PIXELS[..., 0], None, r"an array of uint8 \(8, 4\) is no image"),
        (PIXELS[:0], None, "is no image"),
        (TENSOR.permute(1, 2, 0), None, r"a tensor of \(8, 4, 3\) is no image"),
        (TENSOR.float(), None, "below 0 or above 1: give the image's own pixels"),
        (TENSOR / 255 - 0.5, None, "below 0 or above 1"),
        (TENSOR * torch.nan, None, "below 0 or above 1"),
        (7, None, "a int is no image"),
        (b"abc", None, "a bytes is no image"),
        ({"a": PIXELS}, None, "a dict is no image"),
        ([PIXELS], ["sky"], "view 'sky' unknown"),
        ([PIXELS], [2], r"view 2 should be 0 \(aerial\)"),
        ([PIXELS], [0, 1], "there are more views than images, of which there are 1"),
        ([PIXELS, PIXELS], [0], "there are more images than views, of which there are 1"),
    ],
)
def test_what_is_no_image_or_no_view_is_told(images, views, words):
    with pytest.raises(InputError, match=words):
        list(iter_pictures(images, views))


def test_files_that_do_not_read(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="has no images in it"):
        list(iter_pictures(tmp_path / "empty"))
    with pytest.raises(InputError, match="does not exist"):
        read(tmp_path / "gone.png")


def test_nothing_given_is_changed():
    array, tensor = PIXELS.copy(), (TENSOR / 255).clone()
    read([array, tensor], order="BGR")
    assert (array == PIXELS).all()
    assert torch.equal(tensor, TENSOR / 255)
