"""The CLIP baseline and CLIP-ReID inside the host: towers, both stages, resuming, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from conftest import assert_one_line, recipes
from fastreid.config import get_cfg
from fastreid.utils.events import EventStorage
from small_fastreid import built, train_once, write_tiny

from agreid_plugin.data.images import read_image
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.fastreid.data.batches import to_host
from agreid_plugin.hosts.fastreid.data.transforms import build_transforms
from agreid_plugin.hosts.fastreid.engine.trainer import Trainer
from agreid_plugin.hosts.fastreid.models.backbones import build_towers
from agreid_plugin.hosts.fastreid.models.clip_reid import FILE_NAME, extract, read_schedule
from agreid_plugin.losses import IdentityLoss, TripletLoss
from agreid_plugin.methods.clip_reid import CLIPReID, PromptSchedule
from agreid_plugin.nn.checkpoints import read_checkpoint
from agreid_plugin.types import Batch

RECIPES = recipes("CLIP-ReID")
SHAPE = {"WIDTH": 16, "LAYERS": 2, "HEADS": 2, "TEXT_WIDTH": 8, "TEXT_LAYERS": 1, "TEXT_HEADS": 2, "EMBED_DIM": 8}
TINY = {
    "MODEL": {
        "META_ARCHITECTURE": "CLIPReID",
        "BACKBONE": {"NAME": "build_clip_backbone", "STRIDE_SIZE": [8, 8]},
        "CLIP": {**SHAPE, "PATCH_SIZE": 8},
        "CLIP_REID": {"STAGE1": {"EPOCHS": 2, "BATCH": 16, "LR": 0.01}},
        "HEADS": {"NAME": "BNNeckHead"},
        "LOSSES": {
            "NAME": ["CrossEntropyLoss", "TripletLoss"],
            "CE": {"SCALE": 0.25, "EPSILON": 0.1, "OVER_ALL": True, "OVER_NONZERO": False},
            "TRI": {"MARGIN": 0.0, "HARD_MINING": True},
        },
    },
    "INPUT": {"SIZE_TRAIN": [32, 16], "SIZE_TEST": [32, 16]},
    "DATASETS": {"NAMES": ["CARGO"], "TESTS": ["CARGO"]},
    "DATALOADER": {"SAMPLER_TRAIN": "NaiveIdentitySampler", "NUM_INSTANCE": 4, "NUM_WORKERS": 0},
    "SOLVER": {"IMS_PER_BATCH": 16, "MAX_EPOCH": 1, "WARMUP_ITERS": 0, "STEPS": [30], "LOG_PERIOD": 1},
    "TEST": {"EVAL_PERIOD": 1, "IMS_PER_BATCH": 16, "PROTOCOLS": ["ALL", "A2G"]},
}
BASELINE = ("MODEL.META_ARCHITECTURE", "CLIPBaseline")


@pytest.fixture
def tiny(tmp_path, agsynth) -> Path:
    """A configuration that trains CLIP-ReID on `agsynth` in seconds."""
    return write_tiny(tmp_path, TINY, agsynth)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, agsynth) -> Path:
    """The folder of a run of both stages, which tests only read."""
    config = write_tiny(tmp_path_factory.mktemp("clip"), TINY, agsynth)
    train_once(config)
    return config.parent / "run"


def host_batch(images: torch.Tensor | None = None) -> dict:
    if images is None:
        images = torch.rand(4, 3, 32, 16, generator=torch.Generator().manual_seed(0)) * 255
    return to_host(Batch(images=images, pids=torch.tensor([0, 0, 1, 1]), cameras=torch.zeros(4).long()))


def log_of(folder: Path) -> str:
    return (folder / "log.txt").read_text()


def results_of(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text())["CARGO"]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_builds_a_model_that_takes_a_step(path):
    """At its own settings but for the size of the towers."""
    small = [part for key, value in SHAPE.items() for part in (f"MODEL.CLIP.{key}", value)]
    model = built(path, *small, "MODEL.BACKBONE.PRETRAIN", False, "MODEL.CLIP.QUICK_GELU", "yes").train()
    if "baseline" not in path.stem:
        model.keep_texts()
    size = load_config(path).INPUT.SIZE_TRAIN
    with EventStorage():
        losses = model(host_batch(torch.rand(4, 3, *size) * 255))
    sum(losses.values()).backward()
    assert all(name.startswith("loss_") and torch.isfinite(value) for name, value in losses.items())
    assert not [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_rate_falls_when_the_papers_does(path):
    """Ten epochs of warm-up, a tenth after epochs 30 and 50; the host's steps count from the end of warm-up."""
    cfg = load_config(path)
    if path.stem.endswith("agsynth"):
        assert cfg.SOLVER.SCHED == "CosineAnnealingLR"
        return
    assert list(cfg.SOLVER.STEPS) == [30 - 9, 50 - 9]
    assert cfg.SOLVER.WARMUP_EPOCHS == 10


def test_both_stages_by_one_command(tiny, trained, tmp_path, fastreid_command):
    assert "stage 1, epoch 2/2: prompt loss" in log_of(trained)
    assert set(results_of(trained)) == {"ALL", "A2G"}

    stored, state = read_checkpoint(trained / FILE_NAME), read_checkpoint(trained / "model_final.pth")["model"]
    assert len(stored["identities"]) == 4
    assert len(stored["losses"]) == 2
    assert torch.equal(state["text_classifier.weight"], stored["model"]["text_features"])
    model = built(tiny)
    model.load_state_dict(state)
    model.prompts.copy_(stored["model"]["prompts"])
    texts = model.text_features(torch.arange(4))
    torch.testing.assert_close(texts, stored["model"]["text_features"])

    outcome = fastreid_command("eval", "--config", tiny, "--weights", trained / "model_final.pth")
    assert outcome.code == 0, outcome.err
    assert results_of(tmp_path / "run" / "eval") == results_of(trained)


def test_the_baseline_by_one_command(tiny, tmp_path, fastreid_command):
    outcome = fastreid_command("train", "--config", tiny, *BASELINE)
    assert outcome.code == 0, outcome.err
    run = tmp_path / "run"
    assert "stage 1" not in log_of(run)
    assert not (run / FILE_NAME).exists()
    outcome = fastreid_command("eval", "--config", tiny, "--weights", run / "model_final.pth", *BASELINE)
    assert outcome.code == 0, outcome.err
    assert results_of(run / "eval") == results_of(run)


def test_the_second_stage_moves_the_image_tower_and_keeps_texts(tiny, tmp_path, fastreid_command):
    assert fastreid_command("train", "--config", tiny, "SOLVER.BASE_LR", 0.01).code == 0
    torch.manual_seed(0)  # the run's own seed
    started = built(tiny).state_dict()
    state = read_checkpoint(tmp_path / "run" / "model_final.pth")["model"]
    moved = {name for name, value in state.items() if not torch.equal(value, started[name])}
    still = set(state) - moved
    assert {name for name in state if name.startswith("text.")} <= still
    for name in ("conv1.weight", "proj", "ln_post.weight", "transformer.resblocks.0.attn.in_proj_weight"):
        assert f"image.visual.{name}" in moved
    assert {"head.classifier.weight", "projected_head.classifier.weight", "text_classifier.weight"} <= moved


def test_frozen_parts_stay_frozen_through_the_hosts_optimizer(tiny, tmp_path, fastreid_command):
    freeze = ("MODEL.CLIP.FREEZE", "['image.stem', 'image.blocks:0-0', 'text']")
    assert fastreid_command("train", "--config", tiny, *BASELINE, *freeze, "SOLVER.BASE_LR", 0.01).code == 0
    torch.manual_seed(0)
    started = built(tiny, *BASELINE).state_dict()
    state = read_checkpoint(tmp_path / "run" / "model_final.pth")["model"]
    frozen = ("conv1", "class_embedding", "positional_embedding", "ln_pre", "transformer.resblocks.0.", "proj")
    for name, value in state.items():
        if name.startswith("image.visual."):
            expected = name.removeprefix("image.visual.").startswith(frozen)
            assert torch.equal(value, started[name]) == expected, name


def test_a_resumed_run_has_its_texts(tiny, tmp_path, fastreid_command):
    run = tmp_path / "run"
    assert fastreid_command("train", "--config", tiny, "SOLVER.CHECKPOINT_PERIOD", 1).code == 0
    before, texts = (run / FILE_NAME).stat().st_mtime_ns, read_checkpoint(run / FILE_NAME)["model"]["text_features"]
    outcome = fastreid_command("train", "--config", tiny, "--resume", "SOLVER.MAX_EPOCH", 2)
    assert outcome.code == 0, outcome.err
    assert "stage 1 is not run: the loaded weights" in log_of(run)
    assert (run / FILE_NAME).stat().st_mtime_ns == before
    state = read_checkpoint(run / "model_final.pth")["model"]
    assert torch.equal(state["text_classifier.weight"], texts)


def test_weights_with_texts_need_no_first_stage(tiny, trained, tmp_path, fastreid_command):
    weights = trained / "model_final.pth"
    assert fastreid_command("train", "--config", tiny, "MODEL.WEIGHTS", weights).code == 0
    assert "stage 1 is not run" in log_of(tmp_path / "run")
    before, after = (read_checkpoint(path)["model"] for path in (weights, tmp_path / "run" / "model_final.pth"))
    assert torch.equal(after["text_classifier.weight"], before["text_classifier.weight"])


def test_prompts_of_an_earlier_run(tiny, trained, tmp_path, fastreid_command):
    run, file = tmp_path / "run", trained / FILE_NAME
    assert fastreid_command("train", "--config", tiny, "MODEL.CLIP_REID.STAGE1.PROMPTS", file).code == 0
    assert f"prompts of 4 identities from {file}" in log_of(run)
    states = [read_checkpoint(folder / "model_final.pth")["model"] for folder in (trained, run)]
    torch.testing.assert_close(*(state["text_classifier.weight"] for state in states))


def test_prompts_that_do_not_fit_are_refused(tiny, trained, tmp_path, fastreid_command):
    key, content = "MODEL.CLIP_REID.STAGE1.PROMPTS", read_checkpoint(trained / FILE_NAME)
    torch.save({**content, "identities": ["someone", "else"]}, tmp_path / "others.pth")
    narrow = {"prompts": content["model"]["prompts"][..., :4]}
    torch.save({**content, "model": narrow}, tmp_path / "narrow.pth")
    torch.save({"weight": torch.zeros(1)}, tmp_path / "none.pth")
    for name, words in (
        ("others.pth", ("2 identities", "not of the 4")),
        ("narrow.pth", ("width 4", "text tower's is 8")),
        ("none.pth", ("no prompts",)),
        ("missing.pth", ("does not exist",)),
    ):
        outcome = fastreid_command("train", "--config", tiny, "--output", tmp_path / name[:-4], key, tmp_path / name)
        assert_one_line(outcome, key, name, *words)


def test_features_of_the_first_stage_are_in_order_and_not_augmented(tiny):
    erased = ("INPUT.REA.ENABLED", "True", "INPUT.REA.PROB", "1.0", "INPUT.FLIP.ENABLED", "True")
    cfg = load_config(tiny, ["MODEL.DEVICE", "cpu", *erased, "OUTPUT_DIR", str(tiny.parent)])
    trainer = Trainer(cfg)
    method, train_set = trainer.model, trainer.data_loader.dataset
    labels = torch.tensor([train_set.pid_dict[item[1]] for item in train_set.img_items])
    features = extract(cfg, method, train_set, labels)
    assert features.shape == (48, 8)
    assert method.training
    plain = build_transforms(cfg, is_train=False)
    for index in (0, 17, 47):
        image = plain(read_image(str(train_set.img_items[index][0])))[None]
        normalized = (image - method.pixel_mean) / method.pixel_std
        torch.testing.assert_close(features[index], method.image_features(normalized)[0], rtol=1e-4, atol=1e-5)


def test_a_bad_image_in_the_first_stage_is_one_line(tiny, tmp_path, agsynth, fastreid_command):
    shutil.copytree(agsynth, tmp_path / "broken")
    broken = next((tmp_path / "broken" / "CARGO" / "train").rglob("*.jpg"))
    broken.write_bytes(broken.read_bytes()[:40])
    outcome = fastreid_command("train", "--config", tiny, "DATASETS.ROOT", tmp_path / "broken")
    assert_one_line(outcome, broken.name, "cannot be read")


def test_two_processes_have_the_texts_of_one(tiny, trained, tmp_path, fastreid_command):
    outcome = fastreid_command("train", "--config", tiny, "--num-processes", 2)
    assert outcome.code == 0, outcome.err
    # The two share out the images, so that only rounding may differ from one process's.
    files = [read_checkpoint(folder / FILE_NAME) for folder in (tmp_path / "run", trained)]
    assert files[0]["losses"] == pytest.approx(files[1]["losses"], rel=1e-3)
    torch.testing.assert_close(*(file["model"]["text_features"] for file in files), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("MODEL.BACKBONE.NAME", "build_resnet_backbone"), ("build_resnet_backbone", "use build_clip_backbone")),
        ((*BASELINE, "MODEL.BACKBONE.NAME", "build_vdt_backbone"), ("build_vdt_backbone", "use build_clip_backbone")),
        (("MODEL.CLIP.NAME", "ViT-B-61"), ("MODEL.CLIP", "ViT-B-61", "did you mean ViT-B-16")),
        (("MODEL.CLIP.HEADS", 3), ("MODEL.CLIP", "heads=3", "width=16")),
        (("MODEL.CLIP.QUICK_GELU", "si"), ("MODEL.CLIP.QUICK_GELU", "si", "auto, no, yes")),
        (("MODEL.CLIP.NECK", "befor"), ("neck", "did you mean before")),
        (("MODEL.CLIP.FREEZE", "['imge.stem']"), ("MODEL.CLIP.FREEZE", "imge.stem")),
        (("MODEL.CLIP.FREEZE", "['image.stm']"), ("MODEL.CLIP.FREEZE", "did you mean stem")),
        (("MODEL.CLIP.FREEZE", "['image.blocks:0-5']"), ("MODEL.CLIP.FREEZE", "0-1")),
        (("MODEL.CLIP.TEXT_LENGTH", 10), ("text_length=10", "12")),
        (("MODEL.CLIP_REID.STAGE1.BATCH", 0), ("MODEL.CLIP_REID.STAGE1", "batch=0")),
        (("MODEL.CLIP_REID.STAGE1.EPOCHS", -1), ("MODEL.CLIP_REID.STAGE1", "epochs=-1")),
        (("MODEL.CLIP_REID.I2T_WEIGHT", -1), ("MODEL.CLIP_REID.I2T_WEIGHT", "weight=-1")),
        (("MODEL.CLIP_REID.STAGE2.LR", 1), ("MODEL.CLIP_REID.STAGE2.LR unknown", "did you mean")),
        (("INPUT.SIZE_TEST", "[64, 32]"), ("one image size", "[32, 16]", "[64, 32]")),
        (("MODEL.BACKBONE.STRIDE_SIZE", "[9, 9]"), ("stride", "8")),
        (("MODEL.BACKBONE.PRETRAIN", True, "MODEL.BACKBONE.PRETRAIN_PATH", "none.pt"), ("none.pt", "not exist")),
    ],
)
def test_bad_settings_are_one_line(tiny, fastreid_command, overrides, words):
    assert_one_line(fastreid_command("train", "--config", tiny, *overrides), *words)


def activations(model: torch.nn.Module) -> set[str]:
    return {type(module).__name__ for module in model.modules() if "GELU" in type(module).__name__}


def save_towers(cfg, path: Path, settings: dict | None = None) -> dict:
    """Write a file as open_clip does, with its settings beside it."""
    towers = build_towers(cfg)
    state = {f"visual.{name}": value for name, value in towers.image.visual.state_dict().items()}
    state |= {f"text.{name}": value for name, value in towers.text.text.state_dict().items() if name != "attn_mask"}
    torch.save(state, path)
    if settings is not None:
        (path.parent / "open_clip_config.json").write_text(json.dumps({"model_cfg": settings}))
    return state


@pytest.mark.parametrize(("quick", "expected"), [(True, {"QuickGELU"}), (False, {"GELU"})])
def test_the_weight_file_tells_the_activation_even_when_it_is_not_loaded(tiny, tmp_path, quick, expected):
    file = tmp_path / "clip.bin"
    state = save_towers(load_config(tiny), file, {"quick_gelu": quick})
    for pretrain in (True, False):  # an evaluation loads a checkpoint in its place
        model = built(tiny, "MODEL.BACKBONE.PRETRAIN", pretrain, "MODEL.BACKBONE.PRETRAIN_PATH", file)
        assert activations(model) == expected
        loaded = torch.equal(model.image.visual.proj, state["visual.proj"])
        assert loaded == torch.equal(model.text.text.text_projection, state["text.text_projection"]) == pretrain


def test_a_run_keeps_its_activation(tiny, tmp_path, fastreid_command):
    file = tmp_path / "clip.bin"
    save_towers(load_config(tiny), file, {"quick_gelu": True})
    pretrain = ("MODEL.BACKBONE.PRETRAIN", True, "MODEL.BACKBONE.PRETRAIN_PATH", file)
    outcome = fastreid_command("train", "--config", tiny, *BASELINE, *pretrain)
    assert outcome.code == 0, outcome.err
    file.unlink()  # an evaluation elsewhere has no such file to ask
    options = ("--weights", tmp_path / "run" / "model_final.pth", "--output", tmp_path / "eval")
    assert fastreid_command("eval", "--config", tmp_path / "run" / "config.yaml", *options).code == 0
    assert activations(built(tmp_path / "run" / "config.yaml", "MODEL.BACKBONE.PRETRAIN", False)) == {"QuickGELU"}


def test_an_unknown_activation_is_asked_for(tiny, tmp_path, fastreid_command):
    file = tmp_path / "clip.pt"
    save_towers(load_config(tiny), file)
    pretrain = ("MODEL.BACKBONE.PRETRAIN", True, "MODEL.BACKBONE.PRETRAIN_PATH", file)
    outcome = fastreid_command("train", "--config", tiny, *pretrain)
    assert_one_line(outcome, "MODEL.CLIP.QUICK_GELU", "clip.pt does not tell", "yes", "no")
    for asked, expected in (("yes", {"QuickGELU"}), ("no", {"GELU"})):
        assert activations(built(tiny, *pretrain, "MODEL.CLIP.QUICK_GELU", asked)) == expected
    gone = ("MODEL.BACKBONE.PRETRAIN_PATH", tmp_path / "gone.pt", "MODEL.BACKBONE.PRETRAIN", False)
    assert_one_line(fastreid_command("train", "--config", tiny, *gone), "gone.pt is not there", "MODEL.CLIP.QUICK_GELU")


def test_the_baseline_takes_the_image_tower_of_a_file(tiny, tmp_path):
    file = tmp_path / "clip.pt"
    state = save_towers(load_config(tiny), file)
    torch.save({name: value for name, value in state.items() if name.startswith("visual.")}, file)
    pretrain = ("MODEL.BACKBONE.PRETRAIN", True, "MODEL.BACKBONE.PRETRAIN_PATH", file, "MODEL.CLIP.QUICK_GELU", "no")
    model = built(tiny, *BASELINE, *pretrain)
    assert torch.equal(model.image.visual.conv1.weight, state["visual.conv1.weight"])


def test_another_text_length_for_other_methods(tiny):
    cfg = load_config(tiny, ["MODEL.CLIP.TEXT_LENGTH", "20"])
    assert build_towers(cfg).text.length == 20
    assert build_towers(cfg, 100).text.length == 100


def test_the_image_tower_serves_the_hosts_baseline(tiny, fastreid_command):
    names = ("MODEL.META_ARCHITECTURE", "Baseline", "MODEL.HEADS.NAME", "EmbeddingHead", "MODEL.BACKBONE.FEAT_DIM", 0)
    outcome = fastreid_command("train", "--config", tiny, *names)
    assert outcome.code == 0, outcome.err
    model = built(tiny, *names[:4], "MODEL.BACKBONE.FEAT_DIM", 16)
    images = torch.rand(2, 3, 32, 16)
    features = model.backbone(images)
    assert features.shape == (2, 16, 1, 1)
    torch.testing.assert_close(features[..., 0, 0], model.backbone.core(images).tokens[:, 0])
    assert not model.backbone.core.visual.proj.requires_grad


def test_losses_are_those_of_the_configuration(tiny):
    model = built(tiny, "MODEL.LOSSES.TRI.MARGIN", 0.3, "MODEL.CLIP_REID.I2T_WEIGHT", 0.5).train()
    model.keep_texts()
    inputs = host_batch()
    batch = Batch(images=(inputs["images"] - model.pixel_mean) / model.pixel_std, pids=inputs["targets"])
    kept = CLIPReID.forward(model, batch)  # without the host's dictionaries
    with EventStorage():
        terms = model(inputs)
    cross_entropy = IdentityLoss(0.25, 0.1, over_all=True)
    torch.testing.assert_close(terms["loss_cls_id"], cross_entropy(kept.identity.logits, batch.pids))
    torch.testing.assert_close(terms["loss_triplet_before"], TripletLoss(margin=0.3)(kept.before.features, batch.pids))
    products = kept.projected.features @ model.text_classifier.weight.T
    torch.testing.assert_close(terms["loss_i2t"], 2 * cross_entropy(products, batch.pids))


@pytest.mark.parametrize("head", ["BNNeckHead", "EmbeddingHead"])
def test_heads_of_both_owners_fit(tiny, head):
    model = built(tiny, "MODEL.HEADS.NAME", head, "MODEL.HEADS.WITH_BNNECK", True).train()
    model.keep_texts()
    with EventStorage():
        sum(model(host_batch()).values()).backward()
    assert model.eval()(host_batch()).shape == (4, 24)


def test_the_keys_defaults_are_the_schedules():
    assert read_schedule(get_cfg()) == PromptSchedule()


def test_identities_and_cameras_do_not_reach_a_test_feature(tiny):
    for overrides in ((), BASELINE):
        model, inputs = built(tiny, *overrides).eval(), host_batch()
        with torch.no_grad():
            features = model(inputs)
            shuffled = model({**inputs, "targets": inputs["targets"].flip(0), "camids": inputs["camids"] + 5})
        assert torch.equal(features, shuffled)
