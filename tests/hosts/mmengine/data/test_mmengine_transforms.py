"""Our transforms in mmengine's pipelines."""

import pickle

import numpy as np
import pytest
import torch
from mmengine.registry import TRANSFORMS
from PIL import Image
from small_mmengine import LABELS

from agreid_plugin.data import transforms
from agreid_plugin.data.transforms.pool import AugmentationPool
from agreid_plugin.errors import InputError
from agreid_plugin.nn.clip import EOT, SOT, tokenize

OURS = {
    "PLRM": transforms.PLRM,
    "RandomRotation": transforms.RandomRotation,
    "PatchShuffle": transforms.PatchShuffle,
    "AugmentationPool": AugmentationPool,
}


@pytest.fixture
def image() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (64, 32, 3), dtype=np.uint8)


def build(name, **options):
    return TRANSFORMS.build({"type": f"agreid_plugin.{name}", **options})


def test_an_image_is_read_as_rgb_and_upright(tmp_path):
    stored = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(4, 6))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera lay on its side
    stored.save(tmp_path / "a.png", exif=exif)
    results = build("ReadImage")({"img_path": str(tmp_path / "a.png"), "gt_label": 1})
    assert results["img"].shape == (6, 4, 3)
    assert results["img"].dtype == np.uint8
    assert results["img_shape"] == results["ori_shape"] == (6, 4)
    assert np.array_equal(results["img"][..., 2], np.rot90(np.asarray(stored), -1))
    assert results["gt_label"] == 1


@pytest.mark.parametrize(("content", "words"), [(None, "does not exist"), (b"no image", "cannot be read")])
def test_an_image_that_cannot_be_read_is_named(tmp_path, content, words):
    path = tmp_path / "a.jpg"
    if content:
        path.write_bytes(content)
    with pytest.raises(InputError, match=f"image {path} {words}"):
        build("ReadImage")({"img_path": str(path)})


def test_resizing(image):
    assert build("Resize", size=(32, 24))({"img": image})["img"].shape == (32, 24, 3)
    picture = Image.fromarray(image)
    for name, mode in (("bicubic", Image.BICUBIC), ("bilinear", Image.BILINEAR)):
        found = build("Resize", size=[32, 24], interpolation=name)({"img": image})
        assert np.array_equal(found["img"], np.asarray(picture.resize((24, 32), mode)))
        assert found["img_shape"] == (32, 24)


def test_flipping(image):
    assert np.array_equal(build("HorizontalFlip", prob=1.0)({"img": image})["img"], image[:, ::-1])
    assert np.array_equal(build("HorizontalFlip", prob=0.0)({"img": image})["img"], image)


def test_padding_and_cropping_move_the_image(image):
    torch.manual_seed(0)
    crop, moves = build("PadCrop", padding=2), set()
    padded = np.pad(image, ((2, 2), (2, 2), (0, 0)))
    for _ in range(300):
        found = crop({"img": image})["img"]
        moves |= {
            (top, left)
            for top in range(5)
            for left in range(5)
            if np.array_equal(found, padded[top : top + 64, left : left + 32])
        }
    assert moves == {(top, left) for top in range(5) for left in range(5)}
    assert np.array_equal(build("PadCrop", padding=0)({"img": image})["img"], image)
    torch.manual_seed(0)
    edged = build("PadCrop", padding=40, mode="edge")({"img": image})["img"]
    assert edged.shape == image.shape
    assert edged.max(axis=(0, 1)).min() > 0


def test_erasing(image):
    torch.manual_seed(0)
    erase, parts = build("RandomErasing", prob=0.5, value=[1.5, 2.5, 300.0]), []
    for _ in range(400):
        found = erase({"img": image})["img"]
        gone = (found == np.array([1.5, 2.5, 300.0], dtype=np.float32)).all(-1)
        assert np.array_equal(found[~gone], image[~gone])
        parts.append(gone.mean())
        if gone.any():
            rows, columns = np.flatnonzero(gone.any(1)), np.flatnonzero(gone.any(0))
            assert gone[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()  # a rectangle
    erased = [part for part in parts if part]
    assert len(erased) == pytest.approx(200, abs=40)
    assert min(erased) > 0.015
    assert max(erased) < 0.335
    assert np.mean(erased) == pytest.approx(0.16, abs=0.03)
    assert build("RandomErasing", prob=1.0, value=0)({"img": image + 1})["img"].min() == 0


@pytest.mark.parametrize("name", OURS)
def test_augmentations_are_those_of_tensors(image, name):
    options = {"number": 3} if name == "AugmentationPool" else {"p_img": 1.0}
    before, transform = image.copy(), build(name, **options)
    torch.manual_seed(0)
    found = transform({"img": image, "gt_label": 3})
    torch.manual_seed(0)
    expected = OURS[name](**options)(torch.from_numpy(image.transpose(2, 0, 1).copy()).float())
    assert np.array_equal(found["img"], expected.numpy().transpose(1, 2, 0))
    assert found["img"].dtype == np.float32  # mixed pixels are not rounded, as in fast-reid
    assert found["gt_label"] == 3
    assert not np.array_equal(found["img"], image)
    assert np.array_equal(image, before)


@pytest.mark.parametrize(
    "name", ["ReadImage", "Resize", "HorizontalFlip", "PadCrop", "RandomErasing", "Tokenize", "Pack", *OURS]
)
def test_workers_are_given_copies_and_logs_names(name):
    built = build(name, **({"size": [8, 4]} if name == "Resize" else {}))
    assert repr(pickle.loads(pickle.dumps(built))) == repr(built)
    assert repr(built).startswith(f"{name}(")


@pytest.mark.parametrize("name", ["PLRM", "HorizontalFlip", "Pack"])
@pytest.mark.parametrize("results", [{}, {"img": np.zeros((4, 4), np.uint8)}])
def test_what_is_no_image_is_refused(name, results):
    with pytest.raises(InputError, match=f"{name}: results.*should be .rows, columns, channels."):
        build(name)(results)


def test_pictures_cannot_be_made_of_mixed_pixels(image):
    with pytest.raises(InputError, match="HorizontalFlip cannot take an image of float32: put it before"):
        build("HorizontalFlip")(build("PLRM")({"img": image}))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("Resize", {}, "Resize needs size"),
        ("Resize", {"size": 3}, "size=3 should be the height and the width"),
        ("Resize", {"size": [3, 0]}, "should be the height and the width"),
        ("Resize", {"size": [3, 3], "interpolation": "bicubik"}, "'bicubik' unknown .did you mean bicubic"),
        ("HorizontalFlip", {"prob": 2}, "prob=2 should be between 0 and 1"),
        ("HorizontalFlip", {"p": 1}, "argument of HorizontalFlip 'p' unknown"),
        ("PadCrop", {"mode": "zero"}, "'zero' unknown"),
        ("PadCrop", {"padding": -1}, "padding=-1 should be a whole number"),
        ("RandomErasing", {"value": [1, 2]}, "should be one number, or red, green and blue"),
        ("RandomErasing", {"scale": [0.5, 0.1]}, "scale=.* should be the least and the largest"),
        ("RandomErasing", {"prob": -1}, "prob=-1"),
        ("PLRM", {"p_image": 1}, "argument of PLRM 'p_image' unknown .did you mean p_img"),
        ("PLRM", {"p_img": 7}, "p_img=7 should be between 0 and 1"),
        ("Tokenize", {"length": 2}, "length=2 should be 3 or more"),
        ("Tokenize", {"word_deletion": 2}, "word_deletion=2"),
        ("Pack", {"keys": []}, "argument of Pack 'keys' unknown"),
    ],
)
def test_wrong_arguments_are_one_line(name, options, words):
    with pytest.raises(InputError, match=words):
        build(name, **options)


def test_captions_become_tokens():
    results = {"img_path": "a.jpg", "pid": 1, "captions": ["A man, in RED."], "translations": {}}
    tokens = build("Tokenize", length=12)(results)["tokens"]
    assert torch.equal(tokens, tokenize("a man, in red", 12)[0])
    assert tokens[0] == SOT
    cut = build("Tokenize", length=4)(results)["tokens"]
    assert cut[-1] == EOT
    translated = {**results, "translations": {("a.jpg", "A man, in RED."): "someone"}}
    assert torch.equal(
        build("Tokenize", length=12, back_translation=1.0)(translated)["tokens"], tokenize("someone", 12)[0]
    )
    one_word = build("Tokenize", length=12, word_deletion=1.0)(results)["tokens"]
    assert (one_word != 0).sum() in (3, 4)  # a word stays, with its comma or without
    drawn = {
        tuple(build("Tokenize", length=12)({**results, "captions": ["one", "two"]})["tokens"].tolist())
        for _ in range(40)
    }
    assert drawn == {tuple(tokenize(word, 12)[0].tolist()) for word in ("one", "two")}


def test_an_image_without_captions_is_named():
    with pytest.raises(InputError, match=r"a\.jpg comes without captions: give the dataset captions=dict"):
        build("Tokenize")({"img_path": "a.jpg", "pid": 1})


def test_packing(image):
    packed = build("Pack")({"img": image, "img_path": "a.jpg", "attributes": [1, -1], **LABELS})
    assert packed["inputs"].dtype == torch.float32
    assert np.array_equal(packed["inputs"].numpy().transpose(1, 2, 0), image)
    sample = packed["data_samples"]
    assert int(sample.gt_label) == 2
    assert sample.metainfo == {
        **{name: value for name, value in LABELS.items() if name != "gt_label"},
        "img_path": "a.jpg",
        "caption_number": None,
    }
    assert sample.attributes.tolist() == [1, -1]
    assert "tokens" not in sample
    sample.feature = torch.ones(3)
    assert sample.to_dict()["feature"].sum() == 3
    assert pickle.loads(pickle.dumps(sample)).metainfo == sample.metainfo


def test_unknown_labels_are_none_and_test_samples_have_no_label(image):
    sample = build("Pack")({"img": image, "img_path": "a.jpg", "attributes": None})["data_samples"]
    assert sample.view is None
    assert not {"gt_label", "attributes"} & set(sample.keys())
