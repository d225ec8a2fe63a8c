"""Released state dicts in our names: the same features, whatever the shapes, and one line for what does not convert."""

import pytest
import torch
from golden.recording import shapes_of
from released_format import randomize, released_vdt, released_visa
from released_svpr import released_svpr
from released_tag_clip import released_tag_clip, tiny_tag_clip
from small_svpr import SCHEMA, batch, small_clip

from agreid_plugin.data.attributes import QUT_GROUPS, AttributeSchema
from agreid_plugin.errors import InputError
from agreid_plugin.hosts.fastreid.commands.convert import CONVERTERS
from agreid_plugin.methods.svpr import SVPR
from agreid_plugin.methods.svpr.convert import convert_svpr
from agreid_plugin.methods.vdt import VDT
from agreid_plugin.methods.visa import ViSA, build_backbone
from agreid_plugin.methods.visa.convert import convert_vdt, convert_visa
from agreid_plugin.nn.view_token_vit import DecoupledEncoder
from agreid_plugin.nn.vit import VisionTransformer
from agreid_plugin.types import Batch

TINY = {"image_size": (32, 16), "patch_size": 8, "width": 8, "heads": 2, "depth": 3, "extra_tokens": 1}
BLOCK = [
    *("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias", "attn.qkv.weight", "attn.qkv.bias"),
    *("attn.proj.weight", "attn.proj.bias", "mlp.fc1.weight", "mlp.fc1.bias", "mlp.fc2.weight", "mlp.fc2.bias"),
]
SVPR_HEADS = ("header", "header_cvpr", "header_local", "header_view")
CLASSIFIERS = {"svpr": tuple(f"{head}.classifier.weight" for head in SVPR_HEADS), "tag-clip": ("classifier.weight",)}
NECK = ["weight", *(f"bottleneck.0.{name}" for name in ("weight", "bias", "running_mean", "running_var"))]


def tiny_vdt(**vit) -> VDT:
    torch.manual_seed(0)
    model = VDT(DecoupledEncoder(VisionTransformer(**TINY | vit)), 5)
    randomize(model)
    return model.eval()


def tiny_visa(stride=(6, 8), experts=4, top_k=2, tokens=4, **vit) -> ViSA:
    torch.manual_seed(0)
    core = VisionTransformer(**TINY | {"stride": stride} | vit)
    backbone = build_backbone(core, variant="released", experts=experts, top_k=top_k, tokens=tokens, neighbors=4)
    model = ViSA(backbone, 5, variant="released")
    randomize(model)
    return model.eval()


def tiny_svpr(schema: AttributeSchema = SCHEMA, layers: int = 2, text_length: int = 48) -> SVPR:
    clip = small_clip(text_length, layers=layers, text_layers=layers)
    model = SVPR(clip.image, clip.text, 5, schema=schema, variant="released")
    randomize(model)
    return model.eval()


def svpr_features(model: SVPR) -> torch.Tensor:
    with torch.no_grad():
        return model.embed(model(batch()))


def released(method: str) -> dict[str, torch.Tensor]:
    """A state dict of a tiny model as the released code would have it."""
    if method == "svpr":
        return released_svpr(tiny_svpr().state_dict(), SCHEMA)
    if method == "tag-clip":
        return released_tag_clip(tiny_tag_clip().state_dict())
    return released_vdt(tiny_vdt().state_dict()) if method == "vdt" else released_visa(tiny_visa().state_dict())


def features(model) -> torch.Tensor:
    images = torch.randn(4, 3, 32, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model.embed(model(Batch(images=images, views=torch.tensor([0, 1, 1, 0]))))


def without_predictor(model) -> dict[str, torch.Tensor]:
    return {name: value for name, value in model.state_dict().items() if not name.startswith("view_predictor.")}


def test_released_keys_of_vdt():
    keys = set(released_vdt(tiny_vdt(depth=12).state_dict()))
    expected = {f"backbone.{name}" for name in ("cls_token", "view_token", "pos_embed", "norm.weight", "norm.bias")}
    expected |= {"backbone.patch_embed.proj.weight", "backbone.patch_embed.proj.bias"}
    expected |= {f"backbone.blocks.{number}.{name}" for number in range(12) for name in BLOCK}
    expected |= {f"{h}.{name}" for h in ("heads", "view_heads") for name in (*NECK, "bottleneck.0.num_batches_tracked")}
    assert keys == expected
    assert len(keys) == 163  # as counted in the released model


def test_released_keys_of_visa():
    keys = set(released_visa(tiny_visa(experts=8, depth=12).state_dict()))
    assert keys == set(shapes_of("visa_cargo"))


def test_released_keys_of_svpr():
    schema = AttributeSchema(QUT_GROUPS)
    keys = set(released_svpr(tiny_svpr(schema, layers=12, text_length=100).state_dict(), schema))
    assert keys == set(shapes_of("svpr_agreidv1"))


@pytest.mark.parametrize("stride", [(8, 8), (6, 8)])
def test_a_converted_vdt_is_the_same_model(stride):
    original, other = tiny_vdt(stride=stride), tiny_vdt(stride=stride)
    for parameter in other.parameters():
        torch.nn.init.zeros_(parameter)
    converted = convert_vdt(released_vdt(original.state_dict()))
    assert not converted.dropped
    other.load_state_dict(converted.state, strict=True)
    assert torch.equal(features(other), features(original))
    assert torch.equal(other.view_head.classifier.weight, original.view_head.classifier.weight)


@pytest.mark.parametrize(
    "shape",
    [
        {"stride": (6, 6), "experts": 4, "top_k": 2, "tokens": 4},
        {"stride": (6, 5), "experts": 4, "top_k": 3, "tokens": 2},  # as LAGPeR: other columns, half the tokens
        {"stride": (8, 8), "experts": 2, "top_k": 1, "tokens": 1, "depth": 2},
        {"stride": (8, 8), "experts": 12, "top_k": 1, "tokens": 3},  # expert 10 comes after expert 9
    ],
)
def test_a_converted_visa_is_the_same_model(shape):
    original, other = tiny_visa(**shape), tiny_visa(**shape)
    for parameter in other.parameters():
        torch.nn.init.zeros_(parameter)
    converted = convert_visa(released_visa(original.state_dict()))
    unfilled, unexpected = other.load_state_dict(converted.state, strict=False)
    assert not unexpected
    assert all(name.startswith("view_predictor.") for name in unfilled)
    assert torch.equal(features(other), features(original))
    for name, value in without_predictor(original).items():
        assert torch.equal(other.state_dict()[name], value), name


@pytest.mark.parametrize("schema", [SCHEMA, SCHEMA.only(["hat"])])
def test_a_converted_svpr_is_the_same_model(schema):
    original, other = tiny_svpr(schema), tiny_svpr(schema)
    for parameter in other.parameters():
        torch.nn.init.zeros_(parameter)
    converted = convert_svpr(released_svpr(original.state_dict(), schema))
    unfilled, unexpected = other.load_state_dict(converted.state, strict=False)
    assert not unexpected
    assert all(name.startswith("view_predictor.") for name in unfilled)
    assert torch.equal(svpr_features(other), svpr_features(original))
    for name, value in without_predictor(original).items():
        assert torch.equal(other.state_dict()[name], value), name


def test_what_is_dropped_is_listed_by_part():
    released = released_visa(tiny_visa(experts=2).state_dict())
    converted = convert_visa(released)
    counts = {what.split(":")[0]: len(keys) for what, keys in converted.unused.items()}
    assert counts == {
        "last block of `base`": 12,
        "final norm of `base`": 2,
        "graph layer of the specific branch": 1,
        "position embedding of the fusion": 1,
        "query and key projections of the experts": 24,
    }
    assert len(converted.dropped) == 40
    assert not set(converted.dropped) - set(released)


@pytest.mark.parametrize("method", CONVERTERS)
def test_prefix_of_data_parallel_training(method):
    state = released(method)
    plain = CONVERTERS[method](state).state
    wrapped = CONVERTERS[method]({f"module.{key}": value for key, value in state.items()}).state
    assert plain.keys() == wrapped.keys()
    assert all(torch.equal(value, wrapped[name]) for name, value in plain.items())


@pytest.mark.parametrize("method", CONVERTERS)
def test_the_given_state_dict_stays_as_it_was(method):
    state = released(method)
    keys = list(state)
    CONVERTERS[method](state)
    assert list(state) == keys


@pytest.mark.parametrize("method", CONVERTERS)
def test_classifiers_may_be_missing(method):
    endings = CLASSIFIERS.get(method, ("heads.weight",))
    headless = {key: value for key, value in released(method).items() if not key.endswith(endings)}
    state = CONVERTERS[method](headless).state
    assert not [name for name in state if name.endswith("classifier.weight")]


def test_a_checkpoint_of_the_other_method_is_named():
    vdt, visa = tiny_vdt().state_dict(), tiny_visa().state_dict()
    with pytest.raises(InputError, match="no released visa checkpoint: it is a released vdt checkpoint"):
        convert_visa(released_vdt(vdt))
    with pytest.raises(InputError, match="no released vdt checkpoint: it is a released visa checkpoint"):
        convert_vdt(released_visa(visa))
    with pytest.raises(InputError, match="it is a visa checkpoint in the names of this package already"):
        convert_visa(visa)
    with pytest.raises(InputError, match="no released visa checkpoint: it is a released svpr checkpoint"):
        convert_visa(released("svpr"))
    with pytest.raises(InputError, match="no released svpr checkpoint: it is a svpr checkpoint in the names of this"):
        convert_svpr(tiny_svpr().state_dict())
    with pytest.raises(InputError, match=r"backbone\.view_token is missing, it has conv1\.weight, \.\.\."):
        convert_vdt({"conv1.weight": torch.zeros(1)})
    with pytest.raises(InputError, match="it is empty"):
        convert_vdt({})


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("backbone.base.view_token_ground", "backbone.base.view_token_ground is missing"),
        ("backbone.base.blocks.", "backbone.base.blocks.0 is missing"),
        ("backbone.share_experts.", "backbone.share_experts.0 is missing"),
        ("backbone.ground_experts.1.prm.norm2.bias", "backbone.ground_experts.1.prm.norm2.bias is missing"),
        ("backbone.sky_router.gate.weight", "backbone.sky_router.gate.weight is missing"),
        ("backbone.share_gcn.", "backbone.share_gcn.gcn_weights is missing"),
        ("backbone.out_token", "backbone.out_token is missing"),
    ],
)
def test_an_incomplete_checkpoint_is_one_line(gone, message):
    released = released_visa(tiny_visa().state_dict())
    with pytest.raises(InputError, match=f"the checkpoint is incomplete: {message}"):
        convert_visa({key: value for key, value in released.items() if not key.startswith(gone)})


def test_experts_of_different_shapes_are_one_line():
    released = released_visa(tiny_visa().state_dict())
    released["backbone.sky_experts.1.prompt"] = torch.zeros(1, 9, 8)
    with pytest.raises(InputError, match=r"sky_experts\.1\.prompt is \(1, 9, 8\), but .* is \(1, 4, 8\)"):
        convert_visa(released)


def test_tensors_of_no_released_model_are_named():
    released = released_vdt(tiny_vdt().state_dict()) | {"backbone.sie_embed": torch.zeros(2)}
    with pytest.raises(InputError, match=r"the released model has no backbone\.sie_embed$"):
        convert_vdt(released)


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("TextNet.text_prompt", "TextNet.text_prompt is missing"),
        ("use_cvpr_token", "use_cvpr_token is missing"),
        ("ASMOE.attributsHeader.", r"ASMOE.attributsHeader.\* is missing"),
        ("ASMOE.attributsHeader.bag.bottleneck.bias", "ASMOE.attributsHeader.bag.bottleneck.bias is missing"),
        ("ASMOE.attributsHeader.hat.classifier", "ASMOE.attributsHeader.hat.classifier.weight is missing"),
    ],
)
def test_an_incomplete_checkpoint_of_svpr_is_one_line(gone, message):
    state = {key: value for key, value in released("svpr").items() if not key.startswith(gone)}
    with pytest.raises(InputError, match=f"the checkpoint is incomplete: {message}"):
        convert_svpr(state)


def test_stages_of_svpr_that_differ_are_one_line():
    state = released("svpr")
    state["CVPRNet.blocks.2.norm1.bias"] = state["CVPRNet.blocks.2.norm1.bias"] + 1
    with pytest.raises(InputError, match=r"damaged: CVPRNet\.blocks\.2\.norm1\.bias should equal CVPRNet\.blocks\.0"):
        convert_svpr(state)


def test_attributes_of_svpr_may_have_spaces_in_their_names():
    schema = AttributeSchema({"Head Accessories": ("hat", "none"), "Feet": ("shoes", "boots", "none")})
    converted = convert_svpr(released_svpr(tiny_svpr(schema).state_dict(), schema))
    assert converted.state["backbone.asmoe.heads.classifiers.1.weight"].shape == (3, 16)


def test_tensors_of_no_released_svpr_are_named():
    with pytest.raises(InputError, match=r"the released model has no BACKBONE\.cv_embed$"):
        convert_svpr(released("svpr") | {"BACKBONE.cv_embed": torch.zeros(2)})
