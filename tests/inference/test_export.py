"""`fastreid export`: every method, in every format, makes the features of the model that it was made from."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import yaml
from conftest import ROOT, SMALL_CONFIG, assert_one_line, slow
from fastreid.modeling import build_model
from small_exports import make_model
from small_gallery import SETTINGS, gallery_records, make_visa
from small_mmengine import BACKBONES

from agreid_plugin import Extractor, __version__
from agreid_plugin.cli import main
from agreid_plugin.data.images import read_image
from agreid_plugin.deploy import ExportedModel
from agreid_plugin.evaluation import load_features
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.types import platform_label

CROPPED = ("INPUT.CROP.ENABLED", "True", "INPUT.CROP.SIZE", "[32, 16]", "INPUT.SIZE_TEST", "[40, 20]")
RELEASED = {"variant": "released"}
THREE_WORDS = {"words": {"cctv": "ground", "wearable": "wearable", "uav": "aerial"}}
METHODS = [
    ("ViSA", {}, {"views"}),
    ("VDT", {}, set()),
    ("VIF", {}, set()),
    ("SVPR-attributes", THREE_WORDS, {"views", "platforms"}),
    ("TAGCLIP", {}, set()),
    *slow(
        ("ViSA", {**RELEASED, "backbone": {**BACKBONES["ViSA"], **RELEASED}}, {"views"}),
        ("SVPR", RELEASED, {"views"}),
        ("SVPR", {"view": "predicted"}, set()),
    ),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory, agsynth) -> Path:
    """A folder with `visa.yml` and `visa.pth`."""
    folder = tmp_path_factory.mktemp("export")
    make_visa(folder, agsynth)
    return folder


@pytest.fixture(scope="module")
def records(agsynth) -> list:
    return gallery_records(agsynth)[:7]


@pytest.fixture(scope="module")
def visa(made) -> Path:
    """The file of the tiny ViSA."""
    path = made / "visa.onnx"
    arguments = ["--config", made / "visa.yml", "--weights", made / "visa.pth", "--out", path]
    assert main(["export", *map(str, arguments)]) == 0
    return path


@pytest.fixture
def export(made, fastreid_command, tmp_path):
    """Export the tiny ViSA of fast-reid."""

    def run(name="visa.onnx", *options, weights="visa.pth"):
        common = ("--config", made / "visa.yml", "--weights", made / weights, "--out", tmp_path / name)
        return fastreid_command("export", *common, *options), tmp_path / name

    return run


def differences(out: str) -> list[float]:
    return [float(found) for found in re.findall(r"batch [17]: largest difference (\S+) on", out)]


def pixels(records: list) -> np.ndarray:
    return np.stack([np.asarray(read_image(record.path)).transpose(2, 0, 1) for record in records])


@pytest.mark.parametrize(("name", "changes", "labels"), METHODS)
def test_every_method_runs_in_onnxruntime(name, changes, labels, records, fastreid_command, tmp_path):
    config, weights = make_model(tmp_path, name, **changes)
    outcome = fastreid_command("export", "--config", config, "--weights", weights, "--out", tmp_path / "m.onnx")
    assert outcome.code == 0, outcome.err
    found = differences(outcome.out)
    assert len(found) == 2
    assert max(found) < 1e-4
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    words = [record.platform for record in records]
    wanted = Extractor.from_config(config, weights)([record.path for record in records], words)
    assert np.linalg.norm(wanted - wanted[0], axis=1)[1:].min() > 1e-3
    inputs = {
        "images": pixels(records),
        "views": np.array([record.view for record in records]),
        "platforms": np.array([platform_label(word) for word in words]),
    }
    assert {each.name for each in session.get_inputs()} == {"images"} | labels
    for batch in (1, 7):
        given = {each.name: inputs[each.name][:batch] for each in session.get_inputs()}
        np.testing.assert_allclose(session.run(["features"], given)[0], wanted[:batch], atol=1e-4)


def test_the_text_tower_of_tag_clip(fastreid_command, tmp_path):
    config, weights = make_model(tmp_path, "TAGCLIP")
    common = ("--config", config, "--weights", weights, "--tower", "text")
    outcome = fastreid_command("export", *common, "--out", tmp_path / "words.onnx")
    assert outcome.code == 0, outcome.err
    assert max(differences(outcome.out)) < 1e-4
    assert "8 sentences" in outcome.out
    extractor, exported = Extractor.from_config(config, weights), ExportedModel(tmp_path / "words.onnx")
    sentences = ["a man in red", "someone"] * 4
    tokens = np.stack([extractor.model.tokenizer(sentence) for sentence in sentences])
    np.testing.assert_allclose(exported.embed_tokens(tokens), extractor.texts(sentences), atol=1e-4)
    outcome = fastreid_command("export", *common, "--format", "torchscript", "--out", tmp_path / "words.torchscript")
    assert outcome.code == 0, outcome.err
    found = ExportedModel(tmp_path / "words.torchscript").embed_tokens(tokens)
    np.testing.assert_allclose(found, extractor.texts(sentences), atol=1e-4)


@pytest.mark.parametrize(("name", "format_"), [("visa.torchscript", "torchscript"), *slow(("visa.xml", "openvino"))])
def test_the_other_formats(name, format_, made, records, export):
    outcome, path = export(name, "--format", format_)
    assert outcome.code == 0, outcome.err
    assert max(differences(outcome.out)) < 1e-4
    paths, views = [record.path for record in records], [record.view for record in records]
    extractor = Extractor.from_config(made / "visa.yml", made / "visa.pth")
    np.testing.assert_allclose(ExportedModel(path)(paths, views), extractor(paths, views), atol=1e-4)
    np.testing.assert_allclose(ExportedModel(path, batch_size=2)(paths), extractor(paths), atol=1e-4)
    left = {each.name for each in path.parent.iterdir() if each.stem == "visa"}
    assert left == ({"visa.xml", "visa.bin"} if format_ == "openvino" else {"visa.torchscript"})


def test_a_file_says_what_it_is(made, export):
    outcome, path = export()
    assert outcome.code == 0, outcome.err
    assert outcome.out.splitlines()[-2:] == [
        f"{path}: ViSA, 32x16, features 32 wide, float32, {path.stat().st_size / 1e6:.1f} MB",
        "inputs: images, views; views: given",
    ]
    metadata = {each.key: each.value for each in onnx.load(path).metadata_props}
    described = json.loads(metadata["agreid_plugin"])
    assert described["fingerprint"] == Extractor.from_config(made / "visa.yml", made / "visa.pth").fingerprint
    assert (described["size"], described["interpolation"], described["channels"]) == ([32, 16], "bicubic", "RGB")
    assert (described["package"], described["method"], described["width"]) == (__version__, "ViSA", 32)
    assert (described["inputs"], described["views"], described["unknown_views"]) == (["images", "views"], "given", True)
    assert described["normalized"] is True


def test_views_given_by_image_and_predicted(made, visa, records, export):
    paths = [record.path for record in records]
    extractor = Extractor.from_config(made / "visa.yml", made / "visa.pth")
    given = ExportedModel(visa)
    some = ["aerial", None, "ground", None, 1, 0, "uav"]
    for views in ("aerial", "ground", None, some):
        np.testing.assert_allclose(given(paths, views), extractor(paths, views), atol=1e-4)
    outcome, path = export("predicted.onnx", "--view", "predicted")
    assert "inputs: images; views: predicted" in outcome.out
    np.testing.assert_allclose(ExportedModel(path)(paths), extractor(paths), atol=1e-4)


def test_released_weights_have_no_predictor(made, records, export):
    stored = torch.load(made / "visa.pth")["model"]
    released = {name: value for name, value in stored.items() if not name.startswith("view_predictor.")}
    torch.save({"model": released}, made / "released.pth")
    outcome, path = export(weights="released.pth")
    assert outcome.code == 0, outcome.err
    assert not ExportedModel(path).metadata.unknown_views
    with pytest.raises(ValueError, match="ViSA needs views of every image, and this file has no view predictor"):
        ExportedModel(path)([record.path for record in records])
    outcome, path = export("predicted.onnx", "--view", "predicted", weights="released.pth")
    assert_one_line(outcome, "--view predicted", "no view predictor")


def test_raw_features_flips_and_other_interpolations(made, records, export, fastreid_command, tmp_path):
    paths = [record.path for record in records]
    outcome, path = export("raw.onnx", "--raw", "TEST.FLIP.ENABLED", "True")
    assert outcome.code == 0, outcome.err
    overrides = ["TEST.FLIP.ENABLED", "True"]
    raw = Extractor.from_config(made / "visa.yml", made / "visa.pth", normalize=False, overrides=overrides)
    wanted = raw(paths, "aerial")
    np.testing.assert_allclose(ExportedModel(path)(paths, "aerial"), wanted, atol=1e-4 * np.abs(wanted).max())
    config, weights = make_model(tmp_path, "VDT", "bilinear")
    outcome = fastreid_command("export", "--config", config, "--weights", weights, "--out", tmp_path / "vdt.onnx")
    assert outcome.code == 0, outcome.err
    exported = ExportedModel(tmp_path / "vdt.onnx")
    assert exported.metadata.interpolation == "bilinear"
    image = np.random.default_rng(0).integers(0, 256, (70, 50, 3), dtype=np.uint8)
    np.testing.assert_allclose(exported(image), Extractor.from_config(config, weights)(image), atol=1e-4)


def test_int8_is_smaller_and_near(visa, records, export, agsynth):
    outcome, path = export("int8.onnx", "--int8", "--images", agsynth / "CARGO/gallery")
    assert outcome.code == 0, outcome.err
    (share, mean) = re.search(r"int8: (\d+)% of the size; cosine with the model (\S+),", outcome.out).groups()
    assert int(share) < 100
    assert float(mean) > 0.98
    assert ExportedModel(path).metadata.precision == "int8"
    paths = [record.path for record in records]
    cosines = (ExportedModel(path)(paths, "aerial") * ExportedModel(visa)(paths, "aerial")).sum(axis=1)
    assert 0.95 < cosines.min() < 1 - 1e-7


def test_what_an_export_costs_is_measured(made, export, fastreid_command, tmp_path):
    common = ("--config", made / "visa.yml")
    saved = fastreid_command(
        *("eval", *common, "--weights", made / "visa.pth"),
        *("--output", tmp_path / "a", "--save-features", tmp_path / "model.npz"),
    )
    assert saved.code == 0, saved.err
    outcome, path = export("file.onnx", "--features", tmp_path / "model.npz")
    assert outcome.code == 0, outcome.err
    found, wanted = load_features(path.with_suffix(".npz")), load_features(tmp_path / "model.npz")
    lengths = np.linalg.norm(wanted.images[0], axis=1, keepdims=True)
    np.testing.assert_allclose(found.images[0], wanted.images[0] / lengths, atol=1e-4)
    evaluated = fastreid_command("eval", *common, "--output", tmp_path / "b", "--features", path.with_suffix(".npz"))
    assert evaluated.code == 0, evaluated.err
    (ours,), (theirs,) = ([line for line in each.out.splitlines() if "/ALL" in line] for each in (evaluated, saved))
    assert ours == theirs
    path.unlink()
    assert_one_line(export("file.onnx", "--features", tmp_path / "model.npz")[0], "file.npz exists")
    assert_one_line(export("other.onnx", "--features", tmp_path / "no.npz")[0], "no.npz")
    assert not path.exists()


def test_a_file_that_differs_is_not_kept(export, tmp_path):
    path = tmp_path / "visa.onnx"
    path.write_text("of yesterday")
    assert_one_line(export()[0], "exists: choose another --out, or replace it with --force")
    outcome, _ = export("visa.onnx", "--tolerance", "1e-12", "--force")
    assert outcome.code == 2
    assert "differs from the model by" in outcome.err
    assert path.read_text() == "of yesterday"
    assert {each.name for each in tmp_path.iterdir()} == {"visa.onnx"}
    (tmp_path / "visa.bin").write_text("of yesterday")
    assert_one_line(export("visa.xml", "--format", "openvino")[0], "visa.bin exists")
    assert export("visa.onnx", "--force")[0].code == 0
    assert ExportedModel(path).metadata.method == "ViSA"


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("visa.pb", (), "should end with .onnx"),
        ("visa.onnx", ("--format", "openvino"), "should end with .xml"),
        ("visa.onnx", ("--format", "onxx"), "did you mean onnx?"),
        ("visa.torchscript", ("--format", "torchscript", "--int8"), "--int8 is for --format onnx"),
        ("no/visa.onnx", (), "does not exist"),
        ("visa.onnx", ("--tolerance", "0"), "should be above 0"),
        ("visa.onnx", ("--tower", "text"), "ViSA reads no sentences; TAGCLIP does"),
        ("visa.onnx", ("--images", "nowhere"), "--images nowhere has no images"),
        ("visa.onnx", CROPPED, "more than a resizing"),
    ],
)
def test_what_cannot_be_written_is_one_line(export, tmp_path, name, options, words):
    outcome, _ = export(name, *options)
    assert_one_line(outcome, words)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder in which nobody may write, not even root")
def test_a_folder_that_takes_no_file_is_one_line(export):
    outcome, _ = export("/proc/visa.onnx")
    assert outcome.code == 2
    assert outcome.err.startswith("fastreid: error: /proc/visa.onnx cannot be written: ")
    assert outcome.err.count("\n") == 1


def test_a_model_of_the_hosts_own(records, agsynth, fastreid_command, tmp_path):
    settings = {
        "MODEL": {**SMALL_CONFIG["MODEL"], "DEVICE": "cpu"},
        "INPUT": SETTINGS["INPUT"],
        "DATASETS": {"ROOT": str(agsynth)},
        "TEST": {"FLIP": {"ENABLED": True}},
    }
    config, weights = tmp_path / "host.yml", tmp_path / "w.pth"
    config.write_text(yaml.safe_dump(settings))
    cfg = load_config(config, ["MODEL.HEADS.NUM_CLASSES", "8", "MODEL.BACKBONE.PRETRAIN", "False"])
    model = build_model(cfg).eval()
    torch.save({"model": model.state_dict()}, weights)
    outcome = fastreid_command("export", "--config", config, "--weights", weights, "--out", tmp_path / "r.onnx")
    assert outcome.code == 0, outcome.err
    images = torch.from_numpy(pixels(records)).float()
    with torch.no_grad():
        wanted = (model({"images": images.clone()}) + model({"images": images.flip(3)})).numpy()
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(ExportedModel(tmp_path / "r.onnx")([r.path for r in records]), wanted, atol=1e-4)


@pytest.mark.parametrize(
    ("package", "name", "extra"), [("onnx", "visa.onnx", "export"), ("openvino", "visa.xml", "openvino")]
)
def test_a_package_that_is_not_installed_is_named(export, monkeypatch, package, name, extra):
    monkeypatch.setitem(sys.modules, package, None)
    outcome, path = export(name, "--format", package)
    assert_one_line(outcome, f"{package} is not installed: pip install 'agreid-plugin[{extra}]'")
    assert not path.exists()


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # importing it fails, and any host with it
import numpy as np
from agreid_plugin.deploy import ExportedModel, TrackerReID
np.save(sys.argv[3], ExportedModel(sys.argv[1])([sys.argv[2]], "ground"))
assert TrackerReID(sys.argv[1], "ground").get_features(np.empty((0, 4)), np.zeros((9, 9, 3), np.uint8)).shape == (0, 32)
"""


def test_a_file_is_used_without_torch(made, visa, records, tmp_path):
    path = records[0].path
    command = [sys.executable, "-c", WITHOUT_TORCH, visa, path, tmp_path / "f.npy"]
    subprocess.run(command, check=True, cwd=ROOT)
    wanted = Extractor.from_config(made / "visa.yml", made / "visa.pth")(path, "ground")
    np.testing.assert_allclose(np.load(tmp_path / "f.npy"), wanted, atol=1e-4)


def test_help_has_an_example(capsys):
    with pytest.raises(SystemExit):
        main(["export", "--help"])
    assert "fastreid export --config logs/visa-agsynth/config.yaml" in capsys.readouterr().out
