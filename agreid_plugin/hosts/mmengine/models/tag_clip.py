"""TAG-CLIP, and TBPS-CLIP as the part of it that others lack, as a model of the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from agreid_plugin.errors import error_context, require_int
from agreid_plugin.hosts.mmengine.config.arguments import check_arguments
from agreid_plugin.hosts.mmengine.models.backbones import build_pair
from agreid_plugin.hosts.mmengine.models.base import ReIDModel, compute_accuracy
from agreid_plugin.hosts.mmengine.models.build import Config, build_objectives
from agreid_plugin.hosts.mmengine.registry import MODELS
from agreid_plugin.methods import tag_clip
from agreid_plugin.methods.tag_clip import TAGCLIPOutputs
from agreid_plugin.types import Batch


@MODELS.register_module()
@check_arguments(tag_clip.TAGCLIP)
class TAGCLIP(ReIDModel):
    """TAG-CLIP, and TBPS-CLIP as the part of it that others lack.

    With one identity, as for a test only, it has no classifier, which no test feature needs.

    Args:
        num_ids: identities in the training set.
        clip: arguments of the towers; see `build_towers`.
        image: a network of any library in the place of CLIP's image tower; see `build_pair`.
        objectives: name -> further losses, computed on the images' global features.
        chunk: pairs of a process that are encoded at once, with the gradients of its whole batch: less memory, more
            time; 0 for all. See `agreid_plugin.nn.gradient_cache`.
        freeze_patches: leave the embedding of patches as it was pretrained.
        data_preprocessor: see `ReIDModel`.
        init_cfg: mmengine's initialization.
        options: further arguments of `agreid_plugin.methods.tag_clip.TAGCLIP`, as `block` and `at`.
    """

    def __init__(
        self,
        num_ids: int,
        clip: Config,
        objectives: Mapping[str, Config] | None = None,
        chunk: int = 0,
        freeze_patches: bool = True,
        data_preprocessor: Config | None = None,
        image: Config | None = None,
        init_cfg: Config | None = None,
        **options: Any,
    ):
        with error_context("TAGCLIP"):
            towers = build_pair(clip, image, shared=True)
            if freeze_patches:
                towers.image.freeze_patches()
            method = tag_clip.TAGCLIP(towers, require_int("num_ids", num_ids), build_objectives(objectives), **options)
            method.chunk = require_int("chunk", chunk, least=0)
        super().__init__(method, data_preprocessor, init_cfg)

    def accuracies(self, outputs: TAGCLIPOutputs, batch: Batch) -> dict[str, Tensor]:
        """Return how often identities and views are right, where either is learned and known."""
        found = (
            {} if outputs.image_logits is None else compute_accuracy("cls_accuracy", outputs.image_logits, batch.pids)
        )
        right = torch.tensor(torch.nan) if batch.views is None else outputs.view_accuracy(batch.views)
        return found if right.isnan() else found | {"view_accuracy": right}
