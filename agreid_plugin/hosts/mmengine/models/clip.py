"""The towers of CLIP from plain values."""

from __future__ import annotations

from collections.abc import Sequence

from mmengine.logging import print_log

from agreid_plugin.errors import said_of
from agreid_plugin.hosts.mmengine.config.arguments import require_arguments
from agreid_plugin.hosts.mmengine.models.build import Config
from agreid_plugin.nn.clip import CLIP
from agreid_plugin.nn.clip_build import SHAPE, build_clip
from agreid_plugin.nn.clip_freezing import freeze_named
from agreid_plugin.nn.clip_weights import load_clip, needs_quick_gelu

OWN = ("name", "image_size", "stride", "text_length", "quick_gelu", "freeze", "pretrained")


def build_towers(config: Config | None, text: bool = True) -> CLIP:
    """Build both towers, with weights from a file where one is named.

    Args:
        config: `name` (a ViT of open_clip's), `image_size`, `stride`, `text_length`, `quick_gelu` (auto, yes, no),
            `freeze` (text, image, image.stem, image.blocks:0-5), `pretrained` (a file of weights), and numbers in the
            place of the named model's: `width`, `layers`, `heads`, `patch_size`, `text_width`, `text_layers`,
            `text_heads`, `embed_dim`.
        text: whether the file has to fill the text tower too.
    """
    config = dict(config or {})
    with said_of("clip"):
        require_arguments("CLIP", _build, config, passed=SHAPE, allowed=OWN)
        return _build(**config, text=text)


def spelled(quick_gelu: str | bool) -> str:
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
    text: bool = True,
    **shape: int,
) -> CLIP:
    activation = needs_quick_gelu(spelled(quick_gelu), pretrained)
    clip = build_clip(
        name, image_size=image_size, stride=stride, text_length=text_length, quick_gelu=activation, **shape
    )
    if pretrained:
        print_log(f"pretrained CLIP: {load_clip(clip if text else clip.image, pretrained)}", logger="current")
    freeze_named(clip, freeze)
    return clip
