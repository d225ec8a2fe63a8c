"""The Extractor: the numbers of an evaluation from images of any form, views given or told, both hosts."""

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import small_mmengine
import torch
import yaml
from conftest import ROOT
from fastreid.modeling import build_model
from PIL import Image
from small_exports import CONFIG
from small_gallery import SETTINGS, gallery_records, make_visa
from small_mmengine import CONFIGS

from agreid_plugin import Extractor
from agreid_plugin.data.images import read_image
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import load_features
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.inference.extractor import format_frames
from agreid_plugin.types import View

GUIDE = ROOT / "docs" / "guide" / "search.md"


@pytest.fixture(scope="module")
def made(tmp_path_factory, agsynth) -> Path:
    """A folder with `visa.yml` and `visa.pth`."""
    folder = tmp_path_factory.mktemp("extractor")
    make_visa(folder, agsynth)
    return folder


@pytest.fixture(scope="module")
def visa(made) -> Extractor:
    return Extractor.from_config(made / "visa.yml", made / "visa.pth")


@pytest.fixture(scope="module")
def records(agsynth) -> list:
    return gallery_records(agsynth)


@pytest.fixture(scope="module")
def paths(records) -> list[str]:
    return [record.path for record in records]


@pytest.mark.parametrize("overrides", [[], ["TEST.FLIP.ENABLED", "True"], ["MODEL.VIEW", "predicted"]])
def test_numbers_are_those_of_an_evaluation(made, records, paths, fastreid_command, tmp_path, overrides):
    common = ("--config", made / "visa.yml", "--weights", made / "visa.pth")
    outcome = fastreid_command(
        "eval", *common, "--output", tmp_path / "eval", "--save-features", tmp_path / "f.npz", *overrides
    )
    assert outcome.code == 0, outcome.err
    saved = load_features(tmp_path / "f.npz")
    wanted = saved.images[0][saved.rows(records)]
    views = [record.view for record in records]
    raw = Extractor.from_config(made / "visa.yml", made / "visa.pth", normalize=False, overrides=overrides)
    found = raw(paths, views)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, atol=2e-4)
    unit = Extractor.from_config(made / "visa.yml", made / "visa.pth", overrides=overrides)
    lengths = np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(unit(paths, views), wanted / lengths, atol=3e-5)


def test_every_form_of_an_image_gives_the_same_feature(visa, paths):
    path = paths[0]
    wanted = visa(path, "aerial")
    assert wanted.shape == (1, 32)
    image = read_image(path)
    array = np.array(image)
    tensor = torch.from_numpy(array).permute(2, 0, 1)
    forms = [Path(path), image, array, tensor, tensor / 255, np.stack([array]), [path]]
    for form in forms:
        np.testing.assert_allclose(visa(form, "aerial"), wanted, atol=3e-5)
    np.testing.assert_allclose(visa(array[..., ::-1], "aerial", order="BGR"), wanted, atol=3e-5)
    assert np.abs(visa(array[..., ::-1], "aerial") - wanted).max() > 1e-3
    assert (array == np.array(image)).all()


def test_batches_and_order_do_not_matter(made, visa, paths):
    whole = visa(paths, "ground")
    small = Extractor.from_config(made / "visa.yml", made / "visa.pth", batch_size=3)
    np.testing.assert_allclose(small(paths, "ground"), whole, atol=3e-5)
    np.testing.assert_allclose(visa(paths[::-1], "ground"), whole[::-1], atol=3e-5)
    np.testing.assert_allclose(visa(Path(paths[0]).parents[1], "ground"), whole, atol=3e-5)


def test_views_that_nobody_gives_are_those_of_the_predictor(made, visa, paths):
    told = [view for part in visa.stream(paths) for view in part.views]
    assert set(told) == {View.AERIAL, View.GROUND}
    np.testing.assert_allclose(visa(paths), visa(paths, told), atol=3e-5)
    predicting = Extractor.from_config(made / "visa.yml", made / "visa.pth", overrides=["MODEL.VIEW", "predicted"])
    np.testing.assert_allclose(visa(paths), predicting(paths), atol=3e-5)
    assert [view for part in predicting.stream(paths) for view in part.views] == told
    half = [told[0], *[None] * (len(paths) - 1)]
    np.testing.assert_allclose(visa(paths, half), visa(paths, told), atol=3e-5)
    assert np.abs(visa(paths, "aerial") - visa(paths, "ground")).max() > 1e-3


def test_a_released_file_has_no_predictor_and_needs_views(made, paths, tmp_path):
    stored = torch.load(made / "visa.pth")["model"]
    released = {name: value for name, value in stored.items() if not name.startswith("view_predictor.")}
    torch.save({"model": released}, tmp_path / "released.pth")
    extractor = Extractor.from_config(made / "visa.yml", tmp_path / "released.pth")
    assert extractor(paths[:2], ["aerial", "ground"]).shape == (2, 32)
    with pytest.raises(InputError, match="ViSA needs the view of every image, and its weights have no view predictor"):
        extractor(paths[:2], ["aerial", None])
    with pytest.raises(InputError, match=r"MODEL\.VIEW is predicted, but the weight file has no weights of a view"):
        Extractor.from_config(made / "visa.yml", tmp_path / "released.pth", overrides=["MODEL.VIEW", "predicted"])


def test_a_stream_is_lazy(visa, paths):
    asked = []

    def endless():
        while True:
            asked.append(paths[len(asked) % len(paths)])
            yield asked[-1]

    first = next(visa.stream(endless()))
    assert first.paths == tuple(asked[:16])
    assert len(asked) <= 64


def test_a_stream_names_what_it_leaves_out(visa, paths, tmp_path):
    (tmp_path / "bad.jpg").write_text("no picture")
    given = [paths[0], tmp_path / "bad.jpg", tmp_path / "gone.jpg", paths[1]]
    (part,) = visa.stream(given, skip_bad_images=True)
    assert (part.kept, part.paths) == ((0, 3), (paths[0], paths[1]))
    assert part.bad == (str(tmp_path / "bad.jpg"), str(tmp_path / "gone.jpg"))
    np.testing.assert_allclose(part.features, visa(paths[:2]), atol=3e-5)
    with pytest.raises(InputError, match=r"2 images cannot be read: .*bad\.jpg, .*gone\.jpg: replace or remove"):
        visa(given)


def test_frames_are_counted_with_some_of_them_and_what_to_do(visa, paths, tmp_path):
    frames = [str(tmp_path / f"{number}.jpg") for number in range(7)]
    for path in frames:
        Image.new("RGB", (128, 96)).save(path)
    Image.new("RGB", (100, 96)).save(tmp_path / "crouching.jpg")
    found = [path for part in visa.stream([*paths, *frames, tmp_path / "crouching.jpg"]) for path in part.frames]
    assert found == frames
    line = format_frames(frames, 1000)
    assert "7 of 1,000 images" in line
    assert "cut people out of frames first" in line
    assert [path in line for path in frames] == [True] * 5 + [False] * 2


@pytest.mark.parametrize(
    "nothing", [[], iter(()), np.empty((0, 32, 16, 3), np.uint8)], ids=["list", "iterator", "array"]
)
def test_no_image_is_refused(visa, nothing):
    with pytest.raises(InputError, match="there is no image"):
        visa(nothing)


def test_threads_do_not_disturb_each_other(visa, paths):
    jobs = [paths[start : start + 5] for start in range(0, 15, 5)] * 4
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(visa, jobs))
    for job, features in zip(jobs, found, strict=True):
        np.testing.assert_allclose(features, visa(job), atol=3e-5)


def test_a_fingerprint_is_that_of_weights_and_settings(made, visa, tmp_path):
    def fingerprint(weights=made / "visa.pth", *overrides):
        return Extractor.from_config(made / "visa.yml", weights, overrides=overrides).fingerprint

    shutil.copy(made / "visa.pth", tmp_path / "same.pth")
    assert (
        fingerprint(tmp_path / "same.pth", "MODEL.HEADS.NUM_CLASSES", "4", "SOLVER.MAX_EPOCH", "9") == visa.fingerprint
    )
    stored = torch.load(made / "visa.pth")
    stored["model"]["head.norm.bias"].add_(1)
    torch.save(stored, tmp_path / "other.pth")
    assert fingerprint(tmp_path / "other.pth") != visa.fingerprint
    assert fingerprint(made / "visa.pth", "MODEL.VIEW", "predicted") != visa.fingerprint
    untrained = [visa.make_untrained(made / "visa.yml", seed=seed).fingerprint for seed in (0, 1)]
    assert len({*untrained, visa.fingerprint}) == 3


def test_a_model_of_the_hosts_own(market, tmp_path):
    settings = {
        "MODEL": {"DEVICE": "cpu", "BACKBONE": {"DEPTH": "18x", "FEAT_DIM": 512}, "HEADS": {"WITH_BNNECK": True}},
        "INPUT": SETTINGS["INPUT"],
        "DATASETS": {"ROOT": str(market)},
    }
    (tmp_path / "resnet.yml").write_text(yaml.safe_dump(settings))
    cfg = load_config(tmp_path / "resnet.yml", ["MODEL.HEADS.NUM_CLASSES", "8", "MODEL.BACKBONE.PRETRAIN", "False"])
    model = build_model(cfg).eval()
    torch.save({"model": model.state_dict()}, tmp_path / "w.pth")
    extractor = Extractor.from_config(tmp_path / "resnet.yml", tmp_path / "w.pth", normalize=False)
    image = np.random.default_rng(0).integers(0, 256, size=(32, 16, 3), dtype=np.uint8)
    with torch.no_grad():
        wanted = model({"images": torch.from_numpy(image).permute(2, 0, 1)[None].float()})
    np.testing.assert_allclose(extractor(image), wanted, rtol=1e-4, atol=5e-5)
    with pytest.raises(InputError, match="Baseline reads no sentences; TAGCLIP does"):
        extractor.texts("a man")


@pytest.fixture
def config_py(tmp_path) -> Path:
    """What `visa.yml` says, for mmengine."""
    return write_config(tmp_path / "visa.py", "ViSA", identities=4)


def write_config(path: Path, name: str, identities: int) -> Path:
    described = {**CONFIGS[name], "num_ids": identities}
    path.write_text(CONFIG.format(model=described, interpolation="bicubic"))
    return path


@pytest.mark.both_hosts
def test_both_hosts_give_the_same(made, visa, paths, config_py):
    ours = Extractor.from_config(config_py, made / "visa.pth")
    assert ours.batch_size == 7
    np.testing.assert_allclose(ours(paths, "aerial"), visa(paths, "aerial"), atol=5e-5)
    np.testing.assert_allclose(ours(paths), visa(paths), atol=5e-5)
    predicting = Extractor.from_config(config_py, made / "visa.pth", overrides=["model.view", "predicted"])
    np.testing.assert_allclose(predicting(paths), visa(paths), atol=5e-5)
    assert len({ours.fingerprint, predicting.fingerprint, visa.fingerprint}) == 3


def test_sentences_and_images_of_one_model_of_mmengine(paths, tmp_path):
    config = write_config(tmp_path / "tag_clip.py", "TAGCLIP", identities=1)  # how many it learned matters to nobody
    method = small_mmengine.model("TAGCLIP").eval()
    torch.save({"state_dict": method.state_dict()}, tmp_path / "tag_clip.pth")
    extractor = Extractor.from_config(config, tmp_path / "tag_clip.pth")
    sentences = ["A man in red.", "a woman"]
    with torch.no_grad():
        tokens = torch.stack([extractor.model.tokenizer(sentence) for sentence in ("a man in red", "a woman")])
        wanted = method.method.encode_texts(tokens).embedding
    np.testing.assert_allclose(extractor.texts(sentences), wanted, atol=1e-5)
    np.testing.assert_allclose(extractor.texts(sentences[1]), wanted[1:], atol=1e-5)
    assert extractor(paths[:3]).shape == (3, wanted.shape[1])
    assert all(view is not None for part in extractor.stream(paths[:3]) for view in part.views)
    for nothing, words in (([], "there is no sentence"), ("?!", "has no words")):
        with pytest.raises(InputError, match=words):
            extractor.texts(nothing)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("agreid_plugin.ViSA", "agreid_plugin.ViSb"), "agreid_plugin.ViSb"),
        (('type="agreid_plugin.ReadImage"', 'type="mmcv.LoadImageFromFile"'), "begins with LoadImageFromFile"),
        (("pipeline=pipeline", "lazy_init=True"), "no test_dataloader with a pipeline"),
        (("num_ids", "num_idz"), "'num_idz' unknown (did you mean num_ids?)"),
    ],
)
def test_a_wrong_configuration_of_mmengine_is_one_line(made, config_py, change, words):
    config_py.write_text(config_py.read_text().replace(*change))
    with pytest.raises(InputError, match=re.escape(words)) as caught:
        Extractor.from_config(config_py, made / "visa.pth")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"weights": "no.pth"}, "weight file 'no.pth' does not exist"),
        ({"weights": None}, "weight file '' does not exist"),
        ({"batch_size": 0}, "batch_size=0 should be 1 or more"),
        ({"device": "abacus"}, "device 'abacus' unknown"),
        ({"overrides": ["MODEL.VUE", "given"]}, r"key MODEL\.VUE unknown"),
        ({"overrides": ["MODEL.VIT.WIDTH", "32"]}, "made for another"),
    ],
)
def test_what_does_not_fit_is_refused(made, arguments, words):
    with pytest.raises(InputError, match=words):
        Extractor.from_config(made / "visa.yml", **{"weights": made / "visa.pth", **arguments})


def test_the_lines_of_the_guide_run(made, agsynth, tmp_path, monkeypatch):
    (code,) = re.findall(r"^```python\n(from agreid_plugin import Extractor\n.*?)^```", GUIDE.read_text(), re.M | re.S)
    assert code.count("\n") <= 14
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs/visa-agsynth").mkdir(parents=True)
    shutil.copy(made / "visa.yml", tmp_path / "logs/visa-agsynth/config.yaml")
    shutil.copy(made / "visa.pth", tmp_path / "logs/visa-agsynth/model_final.pth")
    (tmp_path / "datasets").mkdir()
    os.symlink(agsynth, tmp_path / "datasets/agsynth-128x64")
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(tmp_path / "someone.jpg")
    names: dict = {}
    exec(code, names)
    assert names["gallery"].shape[1] == names["one"].shape[1] == 32
    assert names["cosines"].shape == (1, len(names["gallery"]))


def test_extraction_checks_neither_schedules_nor_training_sets(made, config_py):
    wrong = ["SOLVER.SCHED", "Cosine", "SOLVER.OPT", "Adem", "DATASETS.NAMES", "[]", "TEST.BEST_METRIC", "none"]
    assert Extractor.from_config(made / "visa.yml", made / "visa.pth", overrides=wrong).settings.name == "ViSA"
    wrong = ["optim_wrapper.optimizer", "{'type': 'Adem'}", "train_cfg", "{'by_epoch': True, 'max_epoch': 1}"]
    assert Extractor.from_config(config_py, made / "visa.pth", overrides=wrong).settings.name == "ViSA"


def test_extraction_imports_no_trainer():
    names = [f"agreid_plugin.hosts.{name}" for name in ("fastreid.engine.trainer", "fastreid.host", "mmengine.host")]
    code = (
        "import sys; from agreid_plugin.host import load_host;"
        "[load_host(host, 'inference') for host in ('fastreid', 'mmengine')];"
        f"print([name for name in {names} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
