"""Exported files in use: forms of images, views, and files that are not what they should be."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image
from small_exports import make_model

from agreid_plugin.cli import main
from agreid_plugin.deploy import ExportedModel
from agreid_plugin.errors import InputError


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("deploy")
    config, weights = make_model(folder, "VDT")
    assert main(["export", "--config", str(config), "--weights", str(weights), "--out", str(folder / "vdt.onnx")]) == 0
    return folder


@pytest.fixture(scope="module")
def model(made) -> ExportedModel:
    return ExportedModel(made / "vdt.onnx", batch_size=3)


@pytest.fixture
def image() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (60, 30, 3), dtype=np.uint8)


def test_every_form_of_an_image_gives_the_same(model, image, tmp_path):
    Image.fromarray(image).save(tmp_path / "i.png")
    wanted = model(image)
    assert wanted.shape == (1, model.metadata.width)
    assert wanted.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(wanted, axis=1), 1, atol=1e-5)
    for form in (str(tmp_path / "i.png"), tmp_path / "i.png", Image.fromarray(image), [image], image[None]):
        np.testing.assert_allclose(model(form), wanted, atol=1e-6)
    np.testing.assert_allclose(model(image[..., ::-1], order="BGR"), wanted, atol=1e-6)
    assert np.abs(model(image[..., ::-1]) - wanted).max() > 1e-3


def test_batches_do_not_matter(made, model, image):
    several = [image[start:] for start in range(8)]
    wanted = np.concatenate([model(each) for each in several])
    np.testing.assert_allclose(model(several), wanted, atol=1e-5)
    np.testing.assert_allclose(ExportedModel(made / "vdt.onnx", threads=1)(several), wanted, atol=1e-5)
    assert model([]).shape == (0, model.metadata.width)


@pytest.mark.parametrize(
    ("name", "format_"), [("vdt.onnx", "onnx"), ("vdt.torchscript", "torchscript"), ("vdt.xml", "openvino")]
)
def test_threads_share_a_file(made, image, name, format_):
    if not (made / name).exists():
        model = ["--config", str(made / "VDT.py"), "--weights", str(made / "VDT.pth")]
        assert main(["export", *model, "--format", format_, "--out", str(made / name)]) == 0
    model, images = ExportedModel(made / name), [np.roll(image, turn, axis=0) for turn in range(60)]
    wanted = model(images)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(model, [images] * 40))
    for each in found:
        np.testing.assert_allclose(each, wanted, atol=1e-5)


def test_a_photo_that_lies_on_its_side_is_set_up(model, image, tmp_path):
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.fromarray(image).save(tmp_path / "i.png", exif=turned)
    np.testing.assert_allclose(model(tmp_path / "i.png"), model(np.rot90(image, -1)), atol=1e-6)


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("nowhere.jpg", "nowhere.jpg cannot be read as an image"),
        (np.zeros((4, 4), np.uint8), "is no image"),
        (np.zeros((4, 4, 3), np.float32), "of float32 is no image"),
        (np.zeros((0, 4, 3), np.uint8), "is no image"),
        ([None], "NoneType cannot be read as an image"),
    ],
)
def test_what_is_no_image_is_refused(model, image, words):
    with pytest.raises(InputError, match=words):
        model(image)


def test_what_the_file_does_not_take_is_refused(model):
    with pytest.raises(InputError, match="order 'GBR' unknown"):
        model([], order="GBR")
    with pytest.raises(InputError, match="this file has the image tower"):
        model.embed_tokens(np.zeros((1, 48)))


def write_changed(path: Path, out: Path, text: str | None) -> Path:
    stored = onnx.load(path)
    del stored.metadata_props[:]
    if text is not None:
        stored.metadata_props.add(key="agreid_plugin", value=text)
    onnx.save(stored, out)
    return out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "does not say what it is"),
        ("{", "has damaged metadata"),
        ("[]", "has damaged metadata"),
        ("{}", "has damaged metadata"),
    ],
)
def test_a_file_of_others_is_refused(made, tmp_path, text, words):
    with pytest.raises(InputError, match=words):
        ExportedModel(write_changed(made / "vdt.onnx", tmp_path / "other.onnx", text))


def test_a_file_that_says_what_cannot_be_is_refused(made, model, tmp_path):
    for old, new in (('"size": [32, 16]', '"size": [0, 16]'), ('"bicubic"', '"cubic"'), ('"VDT"', "3")):
        text = model.metadata.to_json()
        assert old in text
        with pytest.raises(InputError, match="has damaged metadata"):
            ExportedModel(write_changed(made / "vdt.onnx", tmp_path / "other.onnx", text.replace(old, new)))


def test_what_is_no_file_of_ours_is_refused(made, tmp_path):
    (tmp_path / "half.onnx").write_bytes((made / "vdt.onnx").read_bytes()[:2000])
    with pytest.raises(InputError, match=r"half\.onnx cannot be read by onnxruntime"):
        ExportedModel(tmp_path / "half.onnx")
    (tmp_path / "half.torchscript").write_bytes(b"PK")
    with pytest.raises(InputError, match=r"half\.torchscript cannot be read by torch"):
        ExportedModel(tmp_path / "half.torchscript")
    with pytest.raises(InputError, match="does not exist: make it with fastreid export"):
        ExportedModel(tmp_path / "none.onnx")
    with pytest.raises(InputError, match=r"ending '\.pth' unknown"):
        ExportedModel(made / "VDT.pth")
    with pytest.raises(InputError, match="batch_size=0"):
        ExportedModel(made / "vdt.onnx", batch_size=0)
