"""Our head in the host's registry: for our own models, and, with its losses, for mmpretrain's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmengine.model import BaseModule
from mmengine.structures import BaseDataElement
from torch import Tensor

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.mmengine.config.arguments import check_arguments
from agreid_plugin.hosts.mmengine.data.batches import to_batch
from agreid_plugin.hosts.mmengine.models.base import compute_accuracy
from agreid_plugin.hosts.mmengine.models.build import Config, build_objectives
from agreid_plugin.hosts.mmengine.registry import MODELS
from agreid_plugin.losses import identity_objectives
from agreid_plugin.methods.vif import take_vector
from agreid_plugin.nn.bnneck import BNNeck

MODELS.register_module(module=BNNeck)


@MODELS.register_module()
@check_arguments()
class ReIDHead(BaseModule):
    """`BNNeck` and losses of identities, as a head of mmpretrain's classifiers and retrievers.

    Shapes: B images, D width, C identities.

    Args:
        in_channels: D.
        num_classes: C.
        objectives: name -> loss; cross-entropy and soft-margin triplets without any.
        init_cfg: mmengine's initialization.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        objectives: Mapping[str, Config] | None = None,
        init_cfg: Config | None = None,
    ):
        super().__init__(init_cfg)
        self.neck = BNNeck(in_channels, num_classes)
        self.objectives = identity_objectives() if objectives is None else build_objectives(objectives)

    def pre_logits(self, feats: Sequence[Tensor]) -> Tensor:
        """Return what images are compared by, the last feature behind the norm: tuple of (B, D) -> (B, D)."""
        return self.neck.norm(take_vector(feats))

    def forward(self, feats: Sequence[Tensor]) -> Tensor:
        """Return the logits: (B, C)."""
        return self.neck.classifier(self.pre_logits(feats))

    def loss(self, feats: Sequence[Tensor], data_samples: Sequence[BaseDataElement]) -> dict[str, Tensor]:
        """Return the terms to minimize, `loss_*`, and how often the identity is right."""
        features = take_vector(feats)
        batch = to_batch(features, data_samples).with_(images=None)
        if batch.pids is None:
            raise InputError("the data samples have no gt_label, which ReIDHead learns from")
        outputs = self.neck(features, batch.pids)
        terms = {f"loss_{name}": objective(outputs, batch) for name, objective in self.objectives.items()}
        return terms | compute_accuracy("cls_accuracy", outputs.logits, batch.pids)

    def predict(
        self, feats: Sequence[Tensor], data_samples: Sequence[BaseDataElement | None] | None = None
    ) -> list[BaseDataElement]:
        """Return mmpretrain's data samples with `pred_score` and `pred_label` of identities, as its own heads do."""
        from mmpretrain.structures import DataSample

        scores = self(feats).softmax(dim=1)
        samples = [None] * len(scores) if data_samples is None else data_samples
        found = [DataSample() if sample is None else sample for sample in samples]
        for sample, score in zip(found, scores, strict=True):
            sample.set_pred_score(score).set_pred_label(score.argmax(dim=0, keepdim=True))
        return found
