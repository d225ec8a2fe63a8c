"""TAG-CLIP, and TBPS-CLIP as the part of it that others lack, as a meta-architecture of the host."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from fastreid.engine.hooks import HookBase
from fastreid.modeling.losses.cross_entroy_loss import log_accuracy
from fastreid.modeling.meta_arch import META_ARCH_REGISTRY
from fastreid.utils.events import get_event_storage
from torch import Tensor

from agreid_plugin.errors import require_within
from agreid_plugin.hosts.fastreid.commands.released_checkpoints import OF_CLIP, Released
from agreid_plugin.hosts.fastreid.config.loading import Key, declare, key_error_context
from agreid_plugin.hosts.fastreid.engine.distributed import plain
from agreid_plugin.hosts.fastreid.models.base import HostMethod
from agreid_plugin.hosts.fastreid.models.clip import build_towers, require_clip_backbone
from agreid_plugin.hosts.fastreid.models.losses import build_objectives, declare_architecture
from agreid_plugin.methods import tag_clip
from agreid_plugin.methods.tag_clip import TAGCLIPOutputs
from agreid_plugin.types import Batch, HeadOutputs

NODE = "MODEL.TAG_CLIP"
KEYS = (
    Key(f"{NODE}.BLOCK", "hr_moe", "TAG-CLIP: what has experts: hr_moe, moe (no views), vit (nothing) (Table 4)."),
    Key(f"{NODE}.AT", [6, 7, 8], "TAG-CLIP: the image tower's blocks that have experts, counted from 0."),
    Key(f"{NODE}.EXPERTS", 6, "TAG-CLIP: experts of a block."),
    Key(f"{NODE}.EXCLUSIVE", 1, "TAG-CLIP: experts that each view has for itself."),
    Key(f"{NODE}.TOP_K", 5, "TAG-CLIP: experts of a token."),
    Key(f"{NODE}.NOISE", 0.01, "TAG-CLIP: noise in the logits of the feature-level router, in training."),
    Key(f"{NODE}.SAMPLE", "gumbel", "TAG-CLIP: how training images are sent to a view's experts: gumbel | argmax."),
    Key(f"{NODE}.TSE", True, "TAG-CLIP: local features of selected tokens beside the global ones."),
    Key(f"{NODE}.TSE_SHARE", 0.3, "TAG-CLIP: share of the tokens that TSE selects."),
    Key(f"{NODE}.TSE_WIDTH", 1024, "TAG-CLIP: width of a local feature."),
    Key(f"{NODE}.VIEW_LOSS", True, "TAG-CLIP: L_view, with hr_moe alone."),
    Key(f"{NODE}.ORTHO_LOSS", True, "TAG-CLIP: L_ortho, with hr_moe alone."),
    Key(f"{NODE}.ID_LOSS", True, "TAG-CLIP: L_id."),
    Key(f"{NODE}.OBJECTIVE", "itc", "TAG-CLIP: N-ITC and R-ITC (itc), or IRRA's SDM (sdm)."),
    Key(f"{NODE}.TEMPERATURE", 0.01, "TAG-CLIP: where the learned temperature of itc starts."),
    Key(f"{NODE}.SOFT_LABEL", 0.5, "TAG-CLIP: share of N-ITC's targets that the network gives itself, in the end."),
    Key(f"{NODE}.SOFT_LABEL_EPOCHS", 1.0, "TAG-CLIP: epochs in which that share grows from 0."),
    Key(f"{NODE}.ID_WEIGHT", 0.5, "TAG-CLIP: lambda_id."),
    Key(f"{NODE}.VIEW_WEIGHT", 1.0, "TAG-CLIP: weight of L_view."),
    Key(f"{NODE}.ORTHO_WEIGHT", 100.0, "TAG-CLIP: lambda_ortho; times MARGIN it is the paper's alpha."),
    Key(f"{NODE}.MARGIN", 0.001, "TAG-CLIP: |cos| of class and view token that costs nothing."),
    Key(f"{NODE}.TEXT_DROPOUT", 0.05, "TAG-CLIP: share of attention that the text tower drops in training."),
    Key(f"{NODE}.FREEZE_PATCHES", True, "TAG-CLIP: leave the embedding of patches as it was pretrained."),
    Key(f"{NODE}.GATHER", True, "TAG-CLIP: compare with the pairs of all processes."),
)
declare(KEYS)
declare_architecture(
    "TAGCLIP",
    {
        "CrossEntropyLoss": f"{NODE}.ID_WEIGHT",
        "ViewLoss": f"{NODE}.VIEW_WEIGHT",
        "OrthogonalLoss": f"{NODE}.ORTHO_WEIGHT",
        "NITC": "",
        "RITC": "",
    },
)


@META_ARCH_REGISTRY.register()
class TAGCLIP(HostMethod, tag_clip.TAGCLIP):
    """TAG-CLIP, built from a configuration; losses of `MODEL.LOSSES.NAME` are computed on the images' global features.

    With one identity, as for a test alone, it has no classifier, which no test feature needs.
    """

    computed_with: ClassVar = {"id_loss": "classifier"}
    released: ClassVar = Released(
        "tag-clip",
        settings={f"{NODE}.BLOCK": "hr_moe", f"{NODE}.TSE": True, f"{NODE}.ID_LOSS": True, f"{NODE}.OBJECTIVE": "itc"},
        shapes={
            **OF_CLIP,
            "experts.c_": f"{NODE}.EXPERTS",
            "feature_router.": f"{NODE}.EXPERTS",
            "image_local.": f"{NODE}.TSE_WIDTH",
        },
        unstored=(
            *("MODEL.CLIP.NAME", "MODEL.CLIP.QUICK_GELU"),
            *(f"{NODE}.TOP_K", f"{NODE}.EXCLUSIVE", f"{NODE}.TSE_SHARE"),
        ),
    )

    def __init__(self, cfg):
        require_clip_backbone(cfg)
        node, towers = cfg.MODEL.TAG_CLIP, build_towers(cfg)
        if node.FREEZE_PATCHES:
            towers.image.visual.conv1.requires_grad_(False)
        with key_error_context(NODE):
            super().__init__(
                towers,
                cfg.MODEL.HEADS.NUM_CLASSES,
                block=node.BLOCK,
                at=node.AT,
                experts=node.EXPERTS,
                exclusive=node.EXCLUSIVE,
                top_k=node.TOP_K,
                noise=node.NOISE,
                sample=node.SAMPLE,
                tse=node.TSE,
                view_loss=node.VIEW_LOSS,
                ortho_loss=node.ORTHO_LOSS,
                id_loss=node.ID_LOSS and cfg.MODEL.HEADS.NUM_CLASSES > 1,
                objective=node.OBJECTIVE,
                temperature=node.TEMPERATURE,
                soft_label=node.SOFT_LABEL,
                id_weight=node.ID_WEIGHT,
                view_weight=node.VIEW_WEIGHT,
                ortho_weight=node.ORTHO_WEIGHT,
                margin=node.MARGIN,
                share=node.TSE_SHARE,
                local_width=node.TSE_WIDTH,
                text_dropout=node.TEXT_DROPOUT,
                gather=node.GATHER,
            )
            require_within("soft_label_epochs", node.SOFT_LABEL_EPOCHS, 0, math.inf)
        self.objectives = build_objectives(cfg)
        self.keep_normalization(cfg)

    @classmethod
    def training_hooks(cls, cfg) -> list[HookBase]:
        """Return what has the share of soft labels grow."""
        return [SoftLabelRamp(cfg)]

    def losses(self, outputs: TAGCLIPOutputs, batch: Batch) -> dict[str, Tensor]:
        """Return the method's own losses and those of `MODEL.LOSSES.NAME`."""
        terms = super().losses(outputs, batch)
        if self.objectives:
            head = HeadOutputs(outputs.images.pooled, outputs.images.embedding, outputs.image_logits)
            terms |= {f"loss_{name}": objective(head, batch) for name, objective in self.objectives.items()}
        return terms

    def log_accuracies(self, outputs: TAGCLIPOutputs, batch: Batch) -> None:
        """Tell the host how often identities and views are right, where either is learned and known."""
        if outputs.image_logits is not None:
            log_accuracy(outputs.image_logits.detach(), batch.pids)
        right = float(outputs.view_accuracy(batch.views))
        if not math.isnan(right):
            get_event_storage().put_scalar("view_accuracy", right)

    def normalized(self, inputs: dict[str, Any] | Tensor) -> Batch:
        """Return the host's dictionary, or images alone, as a batch for the method."""
        batch = super().normalized(inputs)
        return batch if len(batch.images) else batch.with_(images=None)  # a batch of sentences alone


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
