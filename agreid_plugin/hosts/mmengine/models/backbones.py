"""Our backbones in the host's registry: for our own models, and for mmpretrain's classifiers and retrievers."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from mmengine.logging import print_log
from mmengine.model import BaseModule
from torch import Tensor, nn

from agreid_plugin.errors import InputError, error_context
from agreid_plugin.hosts.mmengine.config.arguments import check_arguments, require_arguments
from agreid_plugin.hosts.mmengine.models.build import Config, build, find
from agreid_plugin.hosts.mmengine.registry import MODELS
from agreid_plugin.methods import vdt, visa
from agreid_plugin.nn.clip import CLIP
from agreid_plugin.nn.clip_build import SHAPE, build_clip, freeze_named
from agreid_plugin.nn.clip_weights import load_clip, needs_quick_gelu
from agreid_plugin.nn.network_adapters import adapt_network
from agreid_plugin.nn.network_tower import NetworkTower
from agreid_plugin.nn.view_token_vit import PlainEncoder
from agreid_plugin.nn.vit import VisionTransformer, build_vit
from agreid_plugin.nn.vit_weights import load_pretrained

VIT_ARGUMENTS = ("image_size", "patch_size", "stride", "width", "depth", "heads", "mlp_ratio", "qkv_bias", "drop_path")
IMAGE_SIZE = (256, 128)

MODELS.register_module(module=VisionTransformer)


class HostBackbone(BaseModule):
    """A backbone of ours as mmpretrain calls one: images in, a tuple of one feature an image out.

    Our own models take `core`, which gives more.

    Attributes:
        core: the network.
        out_channels: width of the feature.
    """

    def __init__(self, core: nn.Module, out_channels: int, init_cfg: Config | None = None):
        super().__init__(init_cfg)
        self.core, self.out_channels = core, out_channels

    def forward(self, images: Tensor) -> tuple[Tensor]:
        """Return the features that a head goes on with: (B, 3, rows, cols) -> ((B, D),)."""
        return (self.core(images).feature,)


@MODELS.register_module()
@check_arguments()
class ViTBackbone(HostBackbone):
    """A ViT whose class token is the feature.

    Args:
        vit: arguments of the transformer; see `make_vit`.
        init_cfg: mmengine's initialization.
    """

    def __init__(self, vit: Config | None = None, init_cfg: Config | None = None):
        core = PlainEncoder(make_vit(vit, extra_tokens=0))
        super().__init__(core, core.width, init_cfg)


@MODELS.register_module()
@check_arguments(vdt.build_backbone)
class VDTBackbone(HostBackbone):
    """VDT's backbone; the feature is the class token less the view token.

    Args:
        vit: arguments of the transformer; see `make_vit`.
        init_cfg: mmengine's initialization.
        options: further arguments of `agreid_plugin.methods.vdt.build_backbone`, as `shed`.
    """

    def __init__(self, vit: Config | None = None, init_cfg: Config | None = None, **options: Any):
        with error_context(type(self).__name__):
            core = vdt.build_backbone(make_vit(vit, extra_tokens=1), **options)
        super().__init__(core, core.width, init_cfg)


@MODELS.register_module()
@check_arguments(visa.build_backbone, given=("vab",))
class ViSABackbone(HostBackbone):
    """ViSA's backbone. Only model ViSA gives it the views it needs, if `vab` or `etgm` is on.

    Args:
        vit: arguments of the transformer; see `make_vit`.
        vab: view tokens, for which the transformer has one more place.
        init_cfg: mmengine's initialization.
        options: further arguments of `agreid_plugin.methods.visa.build_backbone`, as `experts`.
    """

    def __init__(self, vit: Config | None = None, vab: bool = True, init_cfg: Config | None = None, **options: Any):
        with error_context(type(self).__name__):
            core = visa.build_backbone(make_vit(vit, extra_tokens=int(vab)), vab=vab, **options)
        super().__init__(core, core.width * (1 if core.fusion is None else 2), init_cfg)

    def forward(self, images: Tensor) -> tuple[Tensor]:
        """Return the features that a head goes on with: (B, 3, rows, cols) -> ((B, D),)."""
        if self.core.needs_views:
            raise InputError(
                "ViSABackbone needs the view of each image, which only agreid_plugin.ViSA gives it: use that model, or "
                "vab=False and etgm=False"
            )
        return super().forward(images)


@MODELS.register_module()
@check_arguments()
class CLIPBackbone(HostBackbone):
    """CLIP's image tower; the feature is the class token after the final norm, not projected.

    Args:
        clip: arguments of the towers; see `build_towers`.
        init_cfg: mmengine's initialization.
    """

    def __init__(self, clip: Config | None = None, init_cfg: Config | None = None):
        core = build_towers(clip, "image").image
        core.freeze_projection()
        super().__init__(core, core.width, init_cfg)


def make_vit(config: Config | None, extra_tokens: int) -> nn.Module:
    """Build a ViT with room for tokens of a method's own.

    Args:
        config: `size` (tiny, small, base), `pretrained` (a file of weights), and arguments of `VisionTransformer`,
            which go before those of the size. A `type` names another network than ours, of any library: a ViT, or
            without extra tokens a CNN; `image_size`, 256x128 without one, is of the images that it gets.
        extra_tokens: how many tokens.
    """
    config = dict(config or {})
    if "type" in config:
        return _adapt(config, extra_tokens)
    with error_context("vit"):
        require_arguments(
            "vit", _make_vit, config, passed=(*VIT_ARGUMENTS, "checkpointing"), allowed=("size", "pretrained")
        )
        return _make_vit(**config, extra_tokens=extra_tokens)


def _adapt(config: dict[str, Any], extra_tokens: int) -> nn.Module:
    if "extra_tokens" in inspect.signature(find(config["type"])[0]).parameters:
        return build("vit", config, extra_tokens=extra_tokens)
    network, size = build_network("vit", config)
    with error_context(f"vit {config['type']}"):
        return adapt_network(network, size, extra_tokens)


def build_network(where: str, config: Config) -> tuple[nn.Module, Sequence[int]]:
    """Build a network of any library and return it with the size of its images, `image_size` or `img_size`."""
    config = dict(config)
    size = config.pop("image_size", config.get("img_size"))
    built = build(where, config)
    network = built.core if isinstance(built, HostBackbone) else built
    return network, size or getattr(network, "image_size", IMAGE_SIZE)


def _make_vit(size: str = "base", pretrained: str | None = None, **arguments: Any) -> VisionTransformer:
    vit = build_vit(size, **arguments)
    if pretrained:
        print_log(f"pretrained ViT: {load_pretrained(vit, pretrained)}", logger="current")
    return vit


def find_core(model: str, config: Config | HostBackbone, kind: type[nn.Module], suitable: Sequence[str]) -> nn.Module:
    """Build a backbone and return its core, which must be of a kind.

    Args:
        model: what asks for it.
        config: the backbone.
        kind: the kind of the core.
        suitable: types of backbones that have such a core.
    """
    backbone = build("backbone", config)
    if isinstance(backbone, HostBackbone) and isinstance(backbone.core, kind):
        return backbone.core
    what = config["type"] if isinstance(config, dict) else type(backbone).__name__
    raise InputError(f"backbone {what} does not suit {model}: use {' or '.join(suitable)}")


CLIP_OPTIONS = ("name", "image_size", "stride", "text_length", "quick_gelu", "freeze", "pretrained")


TEXT_OPTIONS = ("name", "text_length", "quick_gelu", "freeze", "pretrained", "embed_dim")


def build_pair(config: Config | None, image: Config | None, shared: bool = False) -> CLIP:
    """Build both towers, or a network of any library as the image tower beside CLIP's text tower.

    Args:
        config: see `build_towers`; with another image tower, options of the text tower only.
        image: the network, with the `image_size` that it gets; see `build_network`. None for CLIP's.
        shared: whether images are compared with texts, which needs a projection to the same width.
    """
    if image is None:
        return build_towers(config)
    for name in config or {}:
        if name not in TEXT_OPTIONS and not name.startswith("text_"):
            raise InputError(f"clip: {name} is of CLIP's image tower, but image={image.get('type')!r} takes its place")
    clip = build_towers(config, "text")
    network, size = build_network("image", image)
    with error_context(f"image {image['type']}"):
        return CLIP(NetworkTower(network, size, clip.text.embed_dim if shared else None), clip.text)


def build_towers(config: Config | None, loaded: str = "both") -> CLIP:
    """Build both towers, with weights from a file where one is named.

    Args:
        config: `name` (a ViT of open_clip's), `image_size`, `stride`, `text_length`, `quick_gelu` (auto, yes, no),
            `freeze` (text, image, image.stem, image.blocks:0-5), `pretrained` (a file of weights), and numbers in the
            place of the named model's: `width`, `layers`, `heads`, `patch_size`, `text_width`, `text_layers`,
            `text_heads`, `embed_dim`.
        loaded: which towers the file has to fill: `both`, `image` or `text`.
    """
    config = dict(config or {})
    with error_context("clip"):
        require_arguments("CLIP", _build, config, passed=SHAPE, allowed=CLIP_OPTIONS)
        return _build(**config, loaded=loaded)


def spell_activation(quick_gelu: str | bool) -> str:
    """Return how a choice of the activation is written, which in Python may be True or False."""
    return ("yes" if quick_gelu else "no") if isinstance(quick_gelu, bool) else quick_gelu


def _build(
    name: str = "ViT-B-16",
    image_size: Sequence[int] = (256, 128),
    stride: int | Sequence[int] | None = None,
    text_length: int = 77,
    quick_gelu: str | bool = "auto",
    freeze: Sequence[str] = (),
    pretrained: str | None = None,
    loaded: str = "both",
    **shape: int,
) -> CLIP:
    activation = needs_quick_gelu(spell_activation(quick_gelu), pretrained)
    clip = build_clip(
        name, image_size=image_size, stride=stride, text_length=text_length, quick_gelu=activation, **shape
    )
    if pretrained:
        print_log(f"pretrained CLIP: {load_clip(getattr(clip, loaded, clip), pretrained)}", logger="current")
    freeze_named(clip, freeze)
    return clip
