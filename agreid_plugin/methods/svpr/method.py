"""SVPR-ReID's heads and losses around its features (Eqs. 9-12).

Shapes: B images, C width, M attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from agreid_plugin.data.attributes import AttributeSchema
from agreid_plugin.errors import InputError, require_given, require_within
from agreid_plugin.losses import AttributeLoss, FeatureLoss, OrthogonalLoss, ViewLoss, clip_objectives
from agreid_plugin.methods.svpr.asmoe import ASMoE
from agreid_plugin.methods.svpr.backbone import SVPRBackbone, SVPRFeatures
from agreid_plugin.methods.svpr.cvpr import GatedRefinement, MomentumRefinement
from agreid_plugin.methods.svpr.text import WORDS, SentenceEncoder, ViewWords
from agreid_plugin.methods.svpr.variants import Variant, get_variant
from agreid_plugin.methods.svpr.vdfe import VDFE, ViewDecoupling, ViewToken
from agreid_plugin.nn.bnneck import BNNeck
from agreid_plugin.nn.clip import ImageTower, TextTower
from agreid_plugin.nn.view_predictor import ViewAwareMethod, ViewPredictor
from agreid_plugin.types import UNKNOWN, AttributeGuess, Batch, HeadOutputs


@dataclass(frozen=True)
class SVPROutputs:
    """Outputs of SVPR-ReID; parts without their module or head are None."""

    features: SVPRFeatures
    identity: HeadOutputs  # of f_reid, in the released variant of f_cls
    cvpr: HeadOutputs | None = None
    local: HeadOutputs | None = None
    view: HeadOutputs | None = None
    predicted: Tensor | None = None  # (B, words) logits of the view predictor


class SVPR(ViewAwareMethod):
    """L = L_reid + view_weight L_view + attribute_weight L_attr (Eq. 12).

    Args:
        image: the image tower.
        text: the text tower, frozen by the caller; without VDFE and ASMoE it is not kept.
        identities: number of identities to train on.
        make_head: makes a head for features of a width and a number of classes; None for `BNNeck`.
        objectives: name -> loss of an identity head; None for smoothed cross-entropy and triplets.
        schema: the attributes to learn; None for a dataset without, which leaves ASMoE out.
        variant: `paper` or `released`; see `Variant`.
        view: where the view of a test image comes from, `given` with it or `predicted`. Training needs it given.
        words: the word of a view sentence for each platform.
        vdfe: the view's token and the decoupling from it (Table 5).
        asmoe: experts for attributes (Table 5).
        cvpr: refinement of patches; without it f_reid is f_cls only (Table 5).
        stages: N, stages of the refinement.
        inject_at: i, block before which the view's token joins the others; None for the last.
        prompts: learned prompts in a sentence.
        experts: experts for attributes.
        expert_top_k: experts that count for an attribute; None for the variant's.
        attribute_ratio: share of the attributes that are chosen (Eq. 7).
        keep: share of the candidates that a stage of the refinement keeps.
        momentum: gamma, share of the refined in a stage's result (Eq. 8).
        view_weight: alpha, weight of the view losses (Eq. 12).
        attribute_weight: beta, weight of the attributes' loss (Eq. 12); None for the variant's.
        orthogonality: `cosine` or `dot`; see `OrthogonalLoss`.
        sentences: style of the attributes' sentences, one of `data.sentences.STYLES`; None for the variant's.
        drop_attributes: share of the training images, drawn in every step, whose sentence names no attribute, as at
            test time. In the paper every sentence names them: what reads them there need not find them in the image.
        cache_text: at test time, reuse encoded sentences of earlier batches while no weight changes.
    """

    title = "SVPR-ReID"

    def __init__(
        self,
        image: ImageTower,
        text: TextTower | None,
        identities: int,
        make_head: Callable[[int, int], nn.Module] | None = None,
        objectives: nn.ModuleDict | None = None,
        schema: AttributeSchema | None = None,
        *,
        variant: str = "paper",
        view: str = "given",
        words: Mapping[str, str] = WORDS,
        vdfe: bool = True,
        asmoe: bool = True,
        cvpr: bool = True,
        stages: int = 3,
        inject_at: int | None = None,
        prompts: int = 4,
        experts: int = 4,
        expert_top_k: int | None = None,
        attribute_ratio: float = 0.7,
        keep: float = 0.5,
        momentum: float = 0.1,
        view_weight: float = 1.0,
        attribute_weight: float | None = None,
        orthogonality: str = "cosine",
        sentences: str | None = None,
        drop_attributes: float = 0.0,
        cache_text: bool = True,
    ):
        super().__init__()
        switches, self.view_classes = get_variant(variant), ViewWords(words)
        self.schema = schema if asmoe and schema else None
        encoder = extractor = attribute_experts = refinement = None
        if vdfe or self.schema:
            if text is None:
                raise InputError("text=None, but VDFE and ASMoE read sentences: give the text tower, or leave both out")
            read_words, style = self.view_classes.distinct if vdfe else (), sentences or switches.style
            encoder = SentenceEncoder(
                text, read_words, self.schema, prompts, switches.word_key, switches.replaced, style
            )
        if encoder and vdfe:
            decoupling = ViewDecoupling(image.width, switches.scaled, switches.entering_key, switches.view_mlp)
            extractor = VDFE(ViewToken(encoder.tower.embed_dim, image.width, prompts), decoupling, inject_at)
        if encoder and self.schema:
            top_k = switches.expert_top_k if expert_top_k is None else expert_top_k
            sizes = self.schema.sizes, experts, top_k, attribute_ratio
            attribute_experts = ASMoE(encoder.tower.embed_dim, image.width, *sizes, switches.scored_experts)
        if cvpr:
            kind = MomentumRefinement if switches.momentum else GatedRefinement
            refinement = kind(image.width, image.num_patches, stages, keep, momentum)
        self.backbone = SVPRBackbone(image, encoder, extractor, attribute_experts, refinement)
        self._add_heads(make_head or BNNeck, identities, switches)
        self.objectives = clip_objectives() if objectives is None else objectives
        self._add_losses(identities, switches, view_weight, attribute_weight, orthogonality)
        self.set_view_source(view)
        if self.schema:
            self.training_inputs |= {"attributes"}
        self.embeds_attributes = switches.embeds_attributes
        self.drop_attributes = require_within("drop_attributes", drop_attributes, 0, 1)
        self.cache_text = cache_text

    def forward(self, batch: Batch) -> SVPROutputs:
        """Encode a batch and run the heads. At test time no sentence names attributes, whatever the batch has."""
        predicted = self.predict_views(batch)
        views = self.select_views(batch, predicted)
        use_cache = self.cache_text and not self.training
        features = self.backbone(batch.images, views, self._select_attributes(batch), use_cache)
        by_part = self._run_heads(features.parts, batch.pids)
        view = self.view_head(features.view, views) if self.view_head else None
        return SVPROutputs(features, *by_part, view, predicted)

    def losses(self, outputs: SVPROutputs, batch: Batch) -> dict[str, Tensor]:
        """Return the terms of Eq. 12: L_reid (Eq. 9), L_view (Eq. 10) and L_attr (Eq. 11), and the view predictor's."""
        features, heads, bare = outputs.features, {"": outputs.identity}, {}
        if not self.one_head:
            parts = {"_cvpr": outputs.cvpr, "_local": outputs.local}
            heads |= {ending: head for ending, head in parts.items() if head is not None}
            bare = {"_entering": features.entering}
        terms = dict(compute_reid_losses(self.objectives, heads, bare, batch))
        if outputs.view is not None:
            words = self.view_classes.encode(require_given("views", batch.views), batch.platforms)
            terms["loss_view"] = self.view_loss(outputs.view.logits, words)
            terms["loss_orthogonal"] = self.orthogonal_loss(features.identity, features.view)
            terms["loss_view_predictor"] = self.predictor_loss(outputs.predicted, words)
        if features.attributes is not None:
            terms["loss_attributes"] = self.attribute_loss(features.attributes.logits, batch.attributes)
        return terms

    def embed(self, outputs: SVPROutputs) -> Tensor:
        """Return f_reid, in the released variant with f_asmoe, without any norm: (B, C to 4C)."""
        features = outputs.features
        attribute_parts = [features.attributes.vector] if self.embeds_attributes and features.attributes else []
        return torch.cat([*features.parts, *attribute_parts], dim=1)

    def embed_patches(self, images: Tensor) -> Tensor:
        """Return the patch embeddings with their positions, before any block: (B, 3, rows, cols) -> (B, P, C)."""
        return self.backbone.image.patches(images)

    def predict_attributes(self, outputs: SVPROutputs) -> list[list[AttributeGuess]]:
        """Return each image's predicted attributes, in the schema's order."""
        attributes = outputs.features.attributes
        if self.schema is None or attributes is None:
            raise InputError("the model has no attributes: train it with ASMoE on a dataset that has them")
        surest = [each.softmax(dim=1).max(dim=1) for each in attributes.logits]  # M of (B,), (B,)
        columns = [
            [AttributeGuess(name, values[label], sure) for sure, label in zip(*map(Tensor.tolist, found), strict=True)]
            for (name, values), found in zip(self.schema.groups.items(), surest, strict=True)
        ]
        return [list(row) for row in zip(*columns, strict=True)]

    def _add_heads(self, make_head: Callable[[int, int], nn.Module], identities: int, switches: Variant) -> None:
        width, parts = self.backbone.image.width, 3 if self.backbone.cvpr else 1
        words = len(self.view_classes)
        self.one_head = switches.one_head
        several = parts > 1 and not switches.one_head
        self.head = make_head(width if several else parts * width, identities)
        self.cvpr_head = make_head(width, identities) if several else None
        self.local_head = make_head(width, identities) if several else None
        self.view_head = make_head(width, switches.view_head_classes or words) if self.backbone.vdfe else None
        self.view_predictor = (
            ViewPredictor(self.backbone.image.embed_width, classes=words) if self.backbone.vdfe else None
        )

    def _add_losses(
        self, identities: int, switches: Variant, view_weight: float, attribute_weight: float | None, orthogonality: str
    ) -> None:
        words = len(self.view_classes)
        self.view_loss = ViewLoss(
            view_weight, switches.view_head_classes or words, switches.view_smoothing, max(identities, 1)
        )
        self.orthogonal_loss = OrthogonalLoss(view_weight, orthogonality)
        self.predictor_loss = ViewLoss(classes=words)
        self.attribute_loss = AttributeLoss(switches.attribute_weight if attribute_weight is None else attribute_weight)

    def _run_heads(
        self, parts: tuple[Tensor, ...], pids: Tensor | None
    ) -> tuple[HeadOutputs, HeadOutputs | None, HeadOutputs | None]:
        """Run the identity heads: one for each part, or one on all of them side by side."""
        if self.cvpr_head is None or self.local_head is None:
            return self.head(torch.cat(parts, dim=1), pids), None, None
        identity, cvpr, local = parts
        return self.head(identity, pids), self.cvpr_head(cvpr, pids), self.local_head(local, pids)

    def _select_attributes(self, batch: Batch) -> Tensor | None:
        """Return the attributes that sentences name: in training the true ones, of some images none; else None."""
        if not (self.training and self.schema):
            return None
        if batch.attributes is None:
            raise InputError("attributes=None, but SVPR-ReID learns from attributes; asmoe=False needs none")
        shape, wanted = tuple(batch.attributes.shape), (len(batch), len(self.schema))
        if shape != wanted:
            raise InputError(f"attributes={shape} should be images by attributes, {wanted}")
        if not self.drop_attributes:
            return batch.attributes
        hidden = torch.rand(len(batch.attributes), 1, device=batch.attributes.device) < self.drop_attributes
        return batch.attributes.masked_fill(hidden, UNKNOWN)


def compute_reid_losses(
    objectives: nn.ModuleDict, heads: Mapping[str, HeadOutputs], features: Mapping[str, Tensor], batch: Batch
) -> Iterator[tuple[str, Tensor]]:
    """Yield each objective of each head by name: that of the first head, plus the mean of the others'.

    Args:
        objectives: name -> loss.
        heads: ending of the name -> outputs of a head; the first counts fully.
        features: ending of the name -> features without a head, (B, C), for losses of features only.
        batch: the batch.
    """
    bare = {ending: HeadOutputs(values, values) for ending, values in features.items()}
    for name, loss in objectives.items():
        seen = {**heads, **bare} if isinstance(loss, FeatureLoss) else heads
        for place, (ending, outputs) in enumerate(seen.items()):
            weight = 1 / (len(seen) - 1) if place else 1
            yield f"loss_{name}{ending}", weight * loss(outputs, batch)
