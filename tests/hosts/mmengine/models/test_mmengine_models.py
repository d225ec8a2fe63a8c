"""Our methods as models of mmengine: the three modes, what they may see, and what is refused."""

import pickle

import pytest
import small_mmengine
import torch
from mmengine.config import Config
from mmengine.model import ExponentialMovingAverage
from mmengine.optim import OptimWrapper
from mmengine.registry import MODELS
from small_mmengine import BACKBONES, CLIP, CONFIGS, OBJECTIVES, ROWS, VIT, batch, loaded, run, sentences
from torch.optim import SGD

from agreid_plugin.data.attributes import AttributeSchema, schema_to_rows
from agreid_plugin.errors import InputError
from agreid_plugin.hosts.mmengine.config.loading import resolve_model, without_pretrained
from agreid_plugin.hosts.mmengine.data.attributes import get_schema
from agreid_plugin.nn.clip_build import build_clip
from agreid_plugin.nn.vit import VisionTransformer
from agreid_plugin.synth import make_agsynth

NEEDS = {"VDT": "views", "ViSA": "views", "SVPR": "views", "SVPR-attributes": "attributes", "TAGCLIP": "tokens"}
TERMS = {
    "VDT": {"loss_cls_id", "loss_triplet_id", "loss_view", "loss_orthogonal"},
    "VIF": {"loss_cls", "loss_triplet", "loss_vial"},
}


@pytest.fixture(params=CONFIGS)
def name(request) -> str:
    return request.param


def features_of(samples) -> torch.Tensor:
    return torch.stack([sample.feature for sample in samples])


def test_a_training_step_changes_weights_and_logs_what_it_minimized(name):
    model = small_mmengine.model(name).train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    logged = model.train_step(loaded(batch()), OptimWrapper(SGD(model.parameters(), lr=0.1)))
    terms = {key for key in logged if key.startswith("loss_")}
    assert TERMS.get(name, terms) == terms
    assert logged["loss"].item() == pytest.approx(sum(logged[term].item() for term in terms), rel=1e-5)
    assert 0 <= logged["cls_accuracy"] <= 1
    assert ("view_accuracy" in logged) == (name == "TAGCLIP")
    assert any(not torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_every_parameter_to_be_trained_is_reached(name):
    model = small_mmengine.model(name).train()
    model.parse_losses(run(model, loaded(batch()), "loss"))[0].backward()
    assert [key for key, p in model.named_parameters() if p.requires_grad and p.grad is None] == []


def test_predict_and_tensor_give_one_feature_an_image(name):
    model = small_mmengine.model(name).eval()
    with torch.no_grad():
        found = model.val_step(loaded(batch()))
        features = run(model, loaded(batch()), "tensor")
    assert features_of(found).dtype == torch.float32
    assert torch.equal(features_of(found), features)
    assert [sample.img_path for sample in found] == [f"{place}.png" for place in range(6)]


def test_test_features_do_not_depend_on_labels(name):
    model = small_mmengine.model(name).eval()
    data = batch()
    other = data.with_(
        pids=data.pids.flip(0), cameras=data.cameras + 3, attributes=data.attributes.flip(0), tokens=data.tokens.flip(0)
    )
    seen = []
    model.method.register_forward_pre_hook(lambda _, args: seen.append(set(args[0].present())))
    with torch.no_grad():
        assert torch.equal(run(model, loaded(data), "tensor"), run(model, loaded(other), "tensor"))
    allowed = {"images", "views"} if model.method.view_source == "given" else {"images"}
    assert seen == [allowed] * 2


def test_views_are_taken_from_the_samples_or_predicted():
    for kind in ("ViSA", "SVPR"):
        data, turned = batch(), batch().with_(views=1 - batch().views)
        given, predicted = small_mmengine.model(kind).eval(), small_mmengine.model(kind, view="predicted").eval()
        with torch.no_grad():
            assert not torch.equal(run(given, loaded(data), "tensor"), run(given, loaded(turned), "tensor"))
            assert torch.equal(run(predicted, loaded(data), "tensor"), run(predicted, loaded(turned), "tensor"))


def test_images_alone_do_for_a_method_that_needs_no_more():
    model = small_mmengine.model("VIF").eval()
    images = model.data_preprocessor({"inputs": list(batch().images)})["inputs"]
    with torch.no_grad():
        assert torch.equal(model(images), run(model, loaded(batch()), "tensor"))
        assert torch.equal(features_of(model(images, mode="predict")), model(images))


def test_sentences_stand_among_images():
    """A batch of a test set where its images end and its captions start, and any other order."""
    model, data = small_mmengine.model("TAGCLIP").eval(), batch()
    images, texts = loaded(data, training=False), sentences(data.tokens)
    mixed = {
        key: [images[key][0], texts[key][4], images[key][1], images[key][2], texts[key][1]]
        for key in ("inputs", "data_samples")
    }
    with torch.no_grad():
        image_features, text_features = run(model, images, "tensor"), run(model, texts, "tensor")
        found = features_of(run(model, mixed, "predict"))
    wanted = torch.stack([image_features[0], text_features[4], image_features[1], image_features[2], text_features[1]])
    torch.testing.assert_close(found, wanted)
    assert not torch.allclose(image_features[0], text_features[0])


def test_a_method_of_images_reads_no_sentences():
    with pytest.raises(InputError, match="VDT reads no sentences"):
        run(small_mmengine.model("VDT").eval(), sentences(batch().tokens), "predict")


def test_chunks_give_the_gradients_of_the_whole_batch():
    """Without noise and dropout, whose draws are others."""
    plain = {"noise": 0.0, "sample": "argmax", "text_dropout": 0.0}
    whole, cached = (small_mmengine.model("TAGCLIP", chunk=chunk, **plain).train() for chunk in (0, 2))
    cached.load_state_dict(whole.state_dict())
    sizes = []
    cached.method.text.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    cached.method.image.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    losses = [run(model, loaded(batch()), "loss") for model in (whole, cached)]
    assert set(sizes) == {2}
    for term in losses[0]:
        torch.testing.assert_close(losses[1][term], losses[0][term])
    for model, found in zip((whole, cached), losses, strict=True):
        model.parse_losses(found)[0].backward()
    for (key, left), right in zip(whole.named_parameters(), cached.parameters(), strict=True):
        torch.testing.assert_close(right.grad, left.grad, rtol=1e-4, atol=1e-6, msg=key)


def test_further_losses_of_tag_clip_are_of_global_image_features():
    model = small_mmengine.model("TAGCLIP", objectives={"triplet": {"type": "agreid_plugin.TripletLoss"}}).train()
    torch.manual_seed(0)
    found = run(model, loaded(batch()), "loss")
    torch.manual_seed(0)
    data = model.data_preprocessor(loaded(batch()), True)
    wanted = model.method.objectives["triplet"].loss(model.method.encode_images(data["inputs"]).pooled, batch().pids)
    torch.testing.assert_close(found["loss_triplet"], wanted)


def test_tag_clip_of_one_identity_has_no_classifier():
    assert small_mmengine.model("TAGCLIP", num_ids=1).method.classifier is None
    assert small_mmengine.model("TAGCLIP", id_loss=False).method.classifier is None


def test_mixed_precision_gives_features_in_float32(name):
    model = small_mmengine.model(name).eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert features_of(model.val_step(loaded(batch()))).dtype == torch.float32


def test_a_configuration_of_mmengine_builds_the_same(name):
    cfg = Config({"model": {**CONFIGS[name], "num_ids": 3}})
    torch.manual_seed(0)
    built, wanted = MODELS.build(cfg.model), small_mmengine.model(name)
    for key, value in wanted.state_dict().items():
        assert torch.equal(built.state_dict()[key], value)
    assert pickle.loads(pickle.dumps(built)).state_dict().keys() == built.state_dict().keys()


def test_own_checkpoints_load_below_a_prefix_too(name):
    model = small_mmengine.model(name)
    averaged, fresh = ExponentialMovingAverage(model), ExponentialMovingAverage(small_mmengine.model(name))
    stored = {key: value + 1 if value.is_floating_point() else value for key, value in averaged.state_dict().items()}
    fresh.load_state_dict(stored)
    assert all(torch.equal(value, stored[key]) for key, value in fresh.state_dict().items())


# What is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NEEDS)
def test_training_without_what_a_method_learns_from_is_refused(kind):
    data = loaded(batch().with_(**{NEEDS[kind]: None}))
    with pytest.raises(InputError, match=f"learns from {NEEDS[kind]}, but the data loader gives none"):
        run(small_mmengine.model(kind).train(), data, "loss")


def test_training_without_identities_is_refused(name):
    data = loaded(batch())
    for sample in data["data_samples"]:
        del sample.gt_label
    with pytest.raises(InputError, match="learns from pids"):
        run(small_mmengine.model(name).train(), data, "loss")


def test_a_mode_that_is_none_is_refused():
    with pytest.raises(InputError, match=r"mode 'predct' unknown \(did you mean predict\?\)"):
        small_mmengine.model("VIF")(batch().images, mode="predct")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"view_wieght": 1.0}, r"argument of VDT 'view_wieght' unknown \(did you mean view_weight\?\)"),
        ({"backbone": BACKBONES["ViT"]}, "ViTBackbone does not suit agreid_plugin.VDT: use agreid_plugin.VDTBackbone"),
        ({"backbone": {"vit": VIT}}, "backbone=.* should be a dictionary with a type"),
        ({"backbone": {"type": "agreid_plugin.VDTBackbon"}}, "did you mean agreid_plugin.VDTBackbone"),
        ({"backbone": {"type": "elsewhere.VDT"}}, "type 'elsewhere.VDT' unknown: is elsewhere installed"),
        ({"backbone": {**BACKBONES["VDT"], "vti": VIT}}, r"'vti' unknown \(did you mean vit\?\)"),
        ({"backbone": {**BACKBONES["VDT"], "vit": {**VIT, "widht": 8}}}, r"vit: .*'widht' unknown .*mean width"),
        ({"backbone": {**BACKBONES["VDT"], "vit": {**VIT, "size": "huge"}}}, "ViT size 'huge' unknown"),
        ({"head": {"type": "agreid_plugin.BNNeck", "bias": True}}, "'bias' unknown"),
        ({"objectives": {"cls": {"type": "agreid_plugin.IdentityLoss", "weigth": 1}}}, "mean weight"),
        ({"objectives": {"view": {"type": "agreid_plugin.ViewLoss"}}}, "ViewLoss is no loss of identities"),
        ({"data_preprocessor": {"type": "agreid_plugin.ReIDPreprocessor", "meen": 0}}, "did you mean mean"),
        ({"data_preprocessor": {"type": "agreid_plugin.ReIDPreprocessor", "mean": [0.5]}}, "three values"),
        ({"num_ids": 0}, "num_ids=0 should be a whole number"),
    ],
)
def test_mistakes_in_a_configuration_are_one_line(change, words):
    with pytest.raises(InputError, match=words) as caught:
        small_mmengine.model("VDT", **change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("ViSA", {"view": "guessed"}, "ViSA: view 'guessed' unknown"),
        ("ViSA", {"backbone": {**BACKBONES["ViSA"], "expert": 2}}, "did you mean experts"),
        ("ViSA", {"backbone": {**BACKBONES["ViSA"], "neighbors": 99}}, "neighbors=99 patches are wanted"),
        ("SVPR", {"clip": {**CLIP, "strid": 8}}, r"clip: argument of CLIP 'strid' unknown \(did you mean stride"),
        ("SVPR", {"clip": {**CLIP, "freeze": ["txt"]}}, r"freeze 'txt' unknown \(did you mean text"),
        ("SVPR", {"clip": {**CLIP, "quick_gelu": "perhaps"}}, "quick_gelu 'perhaps' unknown"),
        ("SVPR", {"clip": {**CLIP, "pretrained": "no/such.pt"}}, "no/such.pt is not there to tell"),
        ("SVPR", {"attributes": [["hair", ["long", 3]]]}, "attributes: value 3 of 'hair' is no text"),
        ("SVPR", {"attributes": [["hair", ["long"]], ["hair", ["short"]]]}, "attributes: 'hair' is named twice"),
        ("SVPR", {"attributes": [["hair", ["long", "long"]]]}, "has a value twice"),
        ("SVPR", {"attributes": {"datset": "CP2108"}}, "did you mean dataset"),
        ("TAGCLIP", {"chunk": -1}, "chunk=-1 should be a whole number"),
        ("TAGCLIP", {"at": [9]}, r"TAGCLIP: at=\[9\]"),
        ("TAGCLIP", {"bloc": "vit"}, "did you mean block"),
    ],
)
def test_mistakes_in_other_models_are_one_line(kind, change, words):
    with pytest.raises(InputError, match=words) as caught:
        small_mmengine.model(kind, **change)
    assert "\n" not in str(caught.value)


# Parts -----------------------------------------------------------------------------------------------------------


def test_images_are_stacked_and_normalized():
    prepare = MODELS.build({"type": "agreid_plugin.ReIDPreprocessor", "mean": [10, 20, 30], "std": [1, 2, 4]})
    pixels = torch.tensor([11.0, 24.0, 38.0]).view(3, 1, 1).expand(3, 2, 2)
    found = prepare({"inputs": [pixels, pixels.to(torch.uint8)], "data_samples": []})["inputs"]
    assert torch.equal(found, torch.tensor([1.0, 2.0, 2.0]).view(1, 3, 1, 1).expand(2, 3, 2, 2))
    turned = MODELS.build({"type": "agreid_plugin.ReIDPreprocessor", "bgr_to_rgb": True, "mean": [0] * 3})
    assert turned({"inputs": [pixels]})["inputs"][0, :, 0, 0].tolist() == pytest.approx(
        [38 / 127.5, 24 / 127.5, 11 / 127.5]
    )
    assert prepare({"inputs": [None, None]})["inputs"] is None
    assert prepare.state_dict() == {}
    with pytest.raises(InputError, match="different shapes"):
        prepare({"inputs": [pixels, torch.rand(3, 4, 4)]})


def test_a_model_without_losses_said_has_the_methods_own():
    model = MODELS.build({"type": "agreid_plugin.VDT", "num_ids": 3, "backbone": BACKBONES["VDT"]})
    assert list(model.method.objectives) == ["cls", "triplet"]
    assert model.method.objectives["cls"].loss.over_nonzero


def test_visa_is_of_its_backbones_variant():
    released = {**BACKBONES["ViSA"], "variant": "released"}
    assert small_mmengine.model("ViSA", backbone=released).method.neck_sees_cls
    assert not small_mmengine.model("ViSA").method.neck_sees_cls
    with pytest.raises(InputError, match="variant='paper', but its backbone has 'released'"):
        small_mmengine.model("ViSA", backbone=released, variant="paper")


def test_pretrained_weights_are_loaded(tmp_path):
    shape = {key: value for key, value in VIT.items() if key != "size"}
    torch.manual_seed(1)
    donor = VisionTransformer(**shape)
    torch.save(donor.state_dict(), tmp_path / "vit.pth")
    backbone = {"type": "agreid_plugin.ViTBackbone", "vit": {**VIT, "pretrained": str(tmp_path / "vit.pth")}}
    model = small_mmengine.model("VIF", backbone=backbone)
    for _ in range(2):
        assert torch.equal(model.method.backbone.vit.blocks[0].attn.qkv.weight, donor.blocks[0].attn.qkv.weight)
        model.init_weights()  # as the Runner does, which would draw others


@pytest.fixture(scope="module")
def four_people(tmp_path_factory):
    """AG-Synth with attributes, as CP2108, and without, as CARGO."""
    root = tmp_path_factory.mktemp("four_people")
    for layout in ("cp2108", "cargo"):
        make_agsynth(root, ids=4, images_per_id=4, size=(32, 16), layout=layout, workers=1, progress=False)
    return root


@pytest.fixture
def clip_file(tmp_path) -> str:
    """Weights under open_clip's names, which do not tell the activation."""
    torch.manual_seed(1)
    towers = build_clip(**CLIP)
    visual = {f"visual.{key}": value for key, value in towers.image.visual.state_dict().items()}
    torch.save(visual | towers.text.text.state_dict(), tmp_path / "clip.pt")
    return str(tmp_path / "clip.pt")


def test_clip_is_loaded_and_frozen(clip_file):
    told = {**CLIP, "pretrained": clip_file, "quick_gelu": "no", "freeze": ["text", "image.stem"]}
    model = small_mmengine.model("SVPR", clip=told)
    stored = torch.load(clip_file)
    visual = model.method.backbone.image.visual
    assert torch.equal(visual.conv1.weight, stored["visual.conv1.weight"])
    assert not visual.conv1.weight.requires_grad
    assert visual.transformer.resblocks[0].mlp.c_fc.weight.requires_grad
    assert not any(p.requires_grad for key, p in model.named_parameters() if "text.tower" in key)


def test_attributes_are_rows_or_those_of_a_dataset(four_people):
    assert schema_to_rows(get_schema(ROWS)) == ROWS
    assert get_schema(None) is None
    of_set = {"dataset": "CP2108", "data_root": str(four_people), "names": ["appearance"]}
    schema = get_schema(of_set)
    assert isinstance(schema, AttributeSchema)
    assert len(schema) == 12
    with pytest.raises(InputError, match=r"attributes: CARGO in .* has none"):
        get_schema({"dataset": "CARGO", "data_root": str(four_people)})


def test_attributes_of_a_dataset_that_is_yet_to_be_made(tmp_path):
    made = {"ids": 4, "images_per_id": 4, "size": (32, 16)}
    schema = get_schema({"dataset": "CP2108", "data_root": str(tmp_path), "names": ["appearance"], "agsynth": made})
    assert len(schema) == 12


def test_what_files_tell_is_written_into_a_configuration(four_people, clip_file):
    of_set = {"dataset": "CP2108", "data_root": str(four_people), "names": ["appearance"]}
    model = {**CONFIGS["SVPR"], "clip": {**CLIP, "pretrained": clip_file, "quick_gelu": "yes"}, "attributes": of_set}
    known = resolve_model(model)
    assert known["attributes"] == schema_to_rows(get_schema(of_set))
    assert known["clip"] == {**CLIP, "pretrained": clip_file, "quick_gelu": "yes"}
    assert resolve_model(CONFIGS["SVPR"])["clip"]["quick_gelu"] == "no"
    bare = without_pretrained(model)
    assert bare["clip"] == {**CLIP, "pretrained": None, "quick_gelu": "yes"}
    nested = {"type": "agreid_plugin.VIF", "backbone": {"vit": {**VIT, "pretrained": "x.pth"}}}
    assert without_pretrained(nested)["backbone"]["vit"] == {**VIT, "pretrained": None}
    theirs = {"backbone": {"type": "mmpretrain.ResNet", "init_cfg": {"type": "Pretrained", "checkpoint": "x.pth"}}}
    assert without_pretrained(theirs)["backbone"]["init_cfg"] is None
    assert without_pretrained({"objectives": OBJECTIVES}) == {"objectives": OBJECTIVES}
