import numpy as np
import pytest
from PIL import Image

from agreid_plugin.data.images import read_image
from agreid_plugin.errors import InputError

ORIENTATION = 0x0112  # the tag of EXIF


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "CMYK"])
def test_every_mode_becomes_rgb(tmp_path, mode):
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    Image.new("RGB", (2, 3), (255, 255, 255)).convert(mode).save(path)
    found = read_image(path)
    assert (found.mode, found.size) == ("RGB", (2, 3))
    assert np.asarray(found).min() == 255


def test_an_image_is_turned_upright(tmp_path):
    picture = Image.new("RGB", (2, 1))
    picture.putpixel((0, 0), (255, 0, 0))
    exif = Image.Exif()
    exif[ORIENTATION] = 6  # to be turned clockwise by a quarter
    picture.save(tmp_path / "a.png", exif=exif)
    assert np.asarray(read_image(tmp_path / "a.png"))[:, :, 0].tolist() == [[255], [0]]


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no\.jpg does not exist"):
        read_image(tmp_path / "no.jpg")
    for name, spelled in (("bad.jpg", r"bad\.jpg"), ("b\nd\udcff.jpg", r"b\\nd\\udcff\.jpg")):
        (tmp_path / name).write_text("no image")
        with pytest.raises(InputError, match=rf"{spelled} cannot be read \(.*\): replace or remove it"):
            read_image(tmp_path / name)
