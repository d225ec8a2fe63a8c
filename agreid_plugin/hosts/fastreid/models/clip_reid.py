"""The CLIP baseline and CLIP-ReID as meta-architectures of the host."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastreid.engine.hooks import HookBase
from fastreid.modeling.meta_arch import META_ARCH_REGISTRY
from torch import Tensor

from agreid_plugin.hosts.fastreid.config.loading import Key, declare, key_error_context
from agreid_plugin.hosts.fastreid.models.base import HostMethod
from agreid_plugin.hosts.fastreid.models.clip import build_clip_backbone, build_towers, require_clip_backbone
from agreid_plugin.hosts.fastreid.models.heads import make_head
from agreid_plugin.hosts.fastreid.models.losses import build_objectives, declare_architecture
from agreid_plugin.hosts.fastreid.models.prompt_stage import PromptStage, schedule_of
from agreid_plugin.losses import IdentityLoss
from agreid_plugin.methods import clip_reid

KEYS = (
    Key("MODEL.CLIP.NECK", "before", "CLIPBaseline, CLIPReID: compare features before or after the heads' norms."),
    Key("MODEL.CLIP_REID.I2T_WEIGHT", 1.0, "CLIP-ReID: weight of the loss of images and texts, smoothed as CE is."),
)
declare(KEYS)
declare_architecture("CLIPReID", {"SupConLoss": ""})


@META_ARCH_REGISTRY.register()
class CLIPBaseline(HostMethod, clip_reid.CLIPBaseline):
    """CLIP's image tower with one head, built from a configuration."""

    def __init__(self, cfg):
        require_clip_backbone(cfg)
        image = build_clip_backbone(cfg).core
        with key_error_context("MODEL.CLIP"):
            super().__init__(
                image,
                cfg.MODEL.HEADS.NUM_CLASSES,
                make_head=partial(make_head, cfg),
                objectives=build_objectives(cfg),
                neck=cfg.MODEL.CLIP.NECK,
            )
        self.keep_normalization(cfg)


@META_ARCH_REGISTRY.register()
class CLIPReID(HostMethod, clip_reid.CLIPReID):
    """CLIP-ReID, built from a configuration; `PromptStage` runs its first stage."""

    def __init__(self, cfg):
        require_clip_backbone(cfg)
        schedule_of(cfg)  # what is wrong with it is better known now than after the features are extracted
        towers, text_loss = build_towers(cfg), _text_loss(cfg)
        with key_error_context("MODEL.CLIP and MODEL.CLIP_REID"):
            super().__init__(
                towers.image,
                towers.text,
                cfg.MODEL.HEADS.NUM_CLASSES,
                make_head=partial(make_head, cfg),
                objectives=build_objectives(cfg),
                text_loss=text_loss,
                neck=cfg.MODEL.CLIP.NECK,
            )
        self.keep_normalization(cfg)

    @classmethod
    def training_hooks(cls, cfg) -> list[HookBase]:
        """Return the first stage."""
        return [PromptStage(cfg)]

    @classmethod
    def skip_stages(cls, model: clip_reid.CLIPReID) -> None:
        """Have texts of prompts as they were drawn."""
        model.keep_texts()

    @classmethod
    def weight_files(cls, cfg) -> dict[str, str]:
        """Return the prompts of an earlier run."""
        return {"prompts": cfg.MODEL.CLIP_REID.STAGE1.PROMPTS}

    def stage_features(self, inputs: dict[str, Any]) -> Tensor:
        """Return what the first stage learns from of a batch of the host's: (B, E)."""
        return self.image_features(self.normalized(inputs).images)


def _text_loss(cfg) -> IdentityLoss:
    """Build the cross-entropy of images and texts, which is smoothed and averaged as that of identities."""
    node = cfg.MODEL.LOSSES.CE
    smoothing = max(node.EPSILON, 0.0)  # below 0 it is the host's adaptive smoothing, which this loss has not
    with key_error_context("MODEL.CLIP_REID.I2T_WEIGHT"):
        return IdentityLoss(cfg.MODEL.CLIP_REID.I2T_WEIGHT, smoothing, node.OVER_NONZERO, node.OVER_ALL)
