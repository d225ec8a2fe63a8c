"""TAG-CLIP, and TBPS-CLIP as the part of it that others lack, as a meta-architecture of the host."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from fastreid.engine.hooks import HookBase
from fastreid.modeling.losses.cross_entroy_loss import log_accuracy
from fastreid.utils.events import get_event_storage
from torch import Tensor

from agreid_plugin.errors import require_within
from agreid_plugin.hosts.fastreid.config.loading import Key, declare
from agreid_plugin.hosts.fastreid.engine.distributed import plain
from agreid_plugin.hosts.fastreid.models.base import (
    HostMethod,
    find_towers,
    register_method,
)
from agreid_plugin.hosts.fastreid.models.losses import build_objectives
from agreid_plugin.hosts.fastreid.models.released import CLIP_SHAPES, ReleasedModelSpec
from agreid_plugin.methods import tag_clip
from agreid_plugin.methods.tag_clip import TAGCLIPOutputs
from agreid_plugin.types import Batch

NODE = "MODEL.TAG_CLIP"
KEYS = (
    Key(f"{NODE}.SOFT_LABEL_EPOCHS", 1.0, "TAG-CLIP: epochs in which that share grows from 0."),
    Key(f"{NODE}.FREEZE_PATCHES", True, "TAG-CLIP: leave the embedding of patches as it was pretrained."),
)
declare(KEYS)


@register_method(NODE)
class TAGCLIP(HostMethod, tag_clip.TAGCLIP):
    """TAG-CLIP, built from a configuration; losses of `MODEL.LOSSES.NAME` are computed on the images' global features.

    With one identity, as for a test only, it has no classifier, which no test feature needs.
    """

    suitable = "build_clip_backbone or a ViT"
    own_losses: ClassVar = {
        "CrossEntropyLoss": "ID_WEIGHT",
        "ViewLoss": "VIEW_WEIGHT",
        "OrthogonalLoss": "ORTHO_WEIGHT",
        "NITC": "",
        "RITC": "",
    }
    computed_with: ClassVar = {"id_loss": "classifier"}
    released: ClassVar = ReleasedModelSpec(
        "tag-clip",
        settings={f"{NODE}.BLOCK": "hr_moe", f"{NODE}.TSE": True, f"{NODE}.ID_LOSS": True, f"{NODE}.OBJECTIVE": "itc"},
        shapes={
            **CLIP_SHAPES,
            "experts.c_": f"{NODE}.EXPERTS",
            "feature_router.": f"{NODE}.EXPERTS",
            "image_local.": f"{NODE}.TSE_WIDTH",
        },
        unstored=(
            *("MODEL.CLIP.NAME", "MODEL.CLIP.QUICK_GELU"),
            *(f"{NODE}.TOP_K", f"{NODE}.EXCLUSIVE", f"{NODE}.TSE_SHARE"),
        ),
    )

    @classmethod
    def build_parts(cls, cfg) -> tuple[Any, ...]:
        """Return both towers, the number of identities, and losses of the images' global features."""
        require_within(f"{NODE}.SOFT_LABEL_EPOCHS", cfg.MODEL.TAG_CLIP.SOFT_LABEL_EPOCHS, 0, math.inf)
        towers = find_towers(cfg, cls, shared=True)
        if cfg.MODEL.TAG_CLIP.FREEZE_PATCHES:
            towers.image.freeze_patches()
        return towers, cfg.MODEL.HEADS.NUM_CLASSES, build_objectives(cfg) or None

    @classmethod
    def training_hooks(cls, cfg) -> list[HookBase]:
        """Return what has the share of soft labels grow."""
        return [SoftLabelRamp(cfg)]

    def log_accuracies(self, outputs: TAGCLIPOutputs, batch: Batch) -> None:
        """Log how often identities and views are right, where either is learned and known."""
        if outputs.image_logits is not None:
            log_accuracy(outputs.image_logits.detach(), batch.pids)
        right = float(outputs.view_accuracy(batch.views))
        if not math.isnan(right):
            get_event_storage().put_scalar("view_accuracy", right)

    def normalized(self, inputs: dict[str, Any] | Tensor) -> Batch:
        """Return the host's dictionary, or only images, as a batch for the method."""
        batch = super().normalized(inputs)
        return batch if len(batch.images) else batch.with_(images=None)  # a batch of sentences only


class SoftLabelRamp(HookBase):
    """Has the share of soft labels grow from 0 to `SOFT_LABEL`, iteration by iteration; a resumed run goes on there."""

    def __init__(self, cfg):
        self._share, self._epochs = cfg.MODEL.TAG_CLIP.SOFT_LABEL, cfg.MODEL.TAG_CLIP.SOFT_LABEL_EPOCHS

    def before_step(self) -> None:
        """Set the share of this iteration."""
        iterations = self._epochs * self.trainer.iters_per_epoch
        passed = min(self.trainer.iter / iterations, 1.0) if iterations else 1.0
        plain(self.trainer.model).soft_label = self._share * passed
        self.trainer.storage.put_scalar("soft_label", self._share * passed, smoothing_hint=False)
