"""TAG-CLIP's outputs, viewpoint decoupling (Eqs. 9-10), losses (Eqs. 11-13) and similarity (Eq. 14).

Shapes: B images, sentences, or pairs of both; L tokens of a sentence; E width of a global feature, W of a local one;
C identities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agreid_plugin.errors import InputError, require_given, require_known, require_within
from agreid_plugin.losses import NITC, RITC, IdentityLoss, ViewLoss
from agreid_plugin.losses.itc import MOST_SCALE, SDMLoss
from agreid_plugin.losses.validation import to_full_precision
from agreid_plugin.methods.tag_clip.encoder import (
    ImageEncoder,
    PairOutputs,
    TowerOutputs,
    read_texts,
    set_text_dropout,
)
from agreid_plugin.methods.tag_clip.hrmoe import BlockRouting
from agreid_plugin.nn.clip import CLIP
from agreid_plugin.nn.gradient_cache import TwoStageMethod
from agreid_plugin.nn.token_selection import SelectedTokens, TokenSelection, mask_patches, mask_words
from agreid_plugin.types import UNKNOWN, Batch, HeadOutputs

OBJECTIVES = ("itc", "sdm")


@dataclass(frozen=True)
class Features:
    """Features of images or sentences."""

    pooled: Tensor  # (B, E) of CLS or EOT, any length
    selected: SelectedTokens | None = None  # of the tokens that matter most; None without TSE

    @property
    def embedding(self) -> Tensor:
        """One feature of length 1, (B, E+W), without TSE (B, E): the dot product of two is the similarity of Eq. 14."""
        if self.selected is None:
            return F.normalize(self.pooled, dim=1)
        parts = [F.normalize(part, dim=1) for part in (self.pooled, self.selected.features)]
        return math.sqrt(1 / 2) * torch.cat(parts, dim=1)


@dataclass(frozen=True)
class ImageFeatures(Features):
    """Features of images, and their routing in each block that has experts."""

    routed: tuple[BlockRouting, ...] = ()


@dataclass(frozen=True)
class TextFeatures(Features):
    """Features of sentences."""


@dataclass(frozen=True)
class TAGCLIPOutputs:
    """Outputs of TAG-CLIP; None for the parts of images or of sentences if the batch has none."""

    images: ImageFeatures | None = None
    texts: TextFeatures | None = None
    image_logits: Tensor | None = None  # (B, C), only in training with the identity loss
    text_logits: Tensor | None = None  # (B, C)

    def view_accuracy(self, views: Tensor) -> Tensor:
        """Return the accuracy of the image-level routers, over blocks and images of known view: (B,) -> ().

        It is NaN if no view is known, or no block routes by view.
        """
        known, routed = views != UNKNOWN, () if self.images is None else self.images.routed
        blocks = [one.logits.argmax(dim=1) for one in routed if one.logits is not None]
        right = [(guess == views)[known].float() for guess in blocks]
        return torch.cat(right).mean() if right else views.new_full((), torch.nan, dtype=torch.float)


class OrthogonalHinge(nn.Module):
    """Pushes CLS and view token to be nearly orthogonal: weight * mean of max(|cos| - margin, 0).

    The paper prints min(|cos|, alpha) (Eq. 10). That has no gradient where the two are far from orthogonal, and is
    constant at alpha = 0, where the paper says it is the usual orthogonal loss. The hinge is what the text describes
    and the released code computes. There the margin is 0.001 and the weight 100, which is max(100 |cos| - 0.1, 0): the
    paper's alpha = 0.1 is margin times weight.

    Computed in float32 inside autocast too. An empty batch is a zero that keeps the graph.

    Args:
        weight: lambda_ortho in Eq. 13.
        margin: largest |cos| without a loss.
    """

    def __init__(self, weight: float = 100.0, margin: float = 0.001):
        super().__init__()
        self.weight = require_within("weight", weight, 0, math.inf)
        self.margin = require_within("margin", margin, 0, 1)

    def forward(self, cls: Tensor, view: Tensor) -> Tensor:
        """Return the loss of a batch: (B, C), (B, C) -> (). The gradient reaches both."""
        if cls.dim() != 2 or view.shape != cls.shape:
            raise InputError(f"view={tuple(view.shape)} should have the shape of cls, (B, C): {tuple(cls.shape)}")
        with torch.autocast(cls.device.type, enabled=False):
            cos = F.cosine_similarity(to_full_precision(cls), to_full_precision(view), dim=1)  # (B,)
            return self.weight * (cos.abs() - self.margin).relu().sum() / max(len(cos), 1)

    def extra_repr(self) -> str:
        """Name the hyper-parameters when printed."""
        return f"weight={self.weight}, margin={self.margin}"


class Decoupling(nn.Module):
    """The two losses of viewpoint decoupling, each the mean over the blocks that have routers.

    Both are computed on the inputs of the experts: the view token leaves the tower after the last of these blocks.

    Args:
        view: the loss of the image-level routers (Eq. 9), or None.
        orthogonal: that of CLS and view token (Eq. 10), or None.
    """

    def __init__(self, view: ViewLoss | None, orthogonal: OrthogonalHinge | None):
        super().__init__()
        self.view, self.orthogonal = view, orthogonal

    def forward(self, routed: Sequence[BlockRouting], views: Tensor | None) -> dict[str, Tensor]:
        """Return the terms by name. Images of `UNKNOWN` view do not count in the first."""
        terms = {}
        if self.view is not None:
            if views is None:
                raise InputError("views=None, but the view loss needs them: give the batch views, or no view loss")
            terms["loss_view"] = torch.stack([self.view(one.logits, views) for one in routed]).mean()
        if self.orthogonal is not None:
            terms["loss_orthogonal"] = torch.stack([self.orthogonal(one.cls, one.view) for one in routed]).mean()
        return terms


class TAGCLIP(TwoStageMethod):
    """L = N-ITC + R-ITC of global and of local features + id_weight L_id + L_view + L_ortho (Eqs. 1-2, 11-13).

    The rows of Table 4 are `block` with `view_loss` and `ortho_loss`. With `block="vit"`, `tse=False` and
    `id_loss=False` it is the simplified TBPS-CLIP.

    Attributes:
        soft_label: share of N-ITC's targets that the network gives itself; the released code has it grow from 0 to 0.5
            over the first epoch, which a trainer does by setting it.

    Args:
        clip: the towers, with their pretrained weights; the method changes them.
        identities: C, number of identities to train on; with one, as for a test only, there is no classifier.
        objectives: name -> further losses, computed on the images' global features.
        block: `hr_moe`, `moe` or `vit`; see `ImageEncoder`.
        at: blocks that have experts, counted from 0.
        experts: experts of a block.
        exclusive: experts that each view has for itself, of `hr_moe`.
        top_k: experts of a token.
        noise: standard deviation in the logits of the feature-level router, in training.
        sample: `gumbel` or `argmax`; see `HRMoEBlock`.
        tse: local features of selected tokens.
        view_loss: L_view, with `hr_moe`.
        ortho_loss: L_ortho, with `hr_moe`.
        id_loss: L_id, cross-entropy to the identities.
        objective: alignment of images and texts: `itc` or, as in IRRA, `sdm`, which learns no temperature.
        temperature: initial value of the learned temperature of `itc`, one for global and local features. The
            released code has 0.07, but loads CLIP's, which is the default here. It is clamped to 0.01 or more.
        soft_label: share of N-ITC's targets that the network gives itself, in the end.
        id_weight: lambda_id, factor of L_id.
        view_weight: factor of L_view.
        ortho_weight: lambda_ortho, factor of L_ortho; see `OrthogonalHinge`.
        margin: of L_ortho, |cos| of class and view token that costs nothing; times `ortho_weight` the paper's alpha.
        tse_share: part of the tokens that TSE selects.
        tse_width: W, width of a local feature.
        text_dropout: share of attention that the text tower drops in training.
        gather: compare with the pairs of all processes; see `VIAL`.
    """

    training_inputs = frozenset({"images", "pids", "tokens"})  # views, too, but some may be unknown
    inference_inputs = frozenset({"images", "tokens"})

    def __init__(
        self,
        clip: CLIP,
        identities: int,
        objectives: nn.ModuleDict | None = None,
        *,
        block: str = "hr_moe",
        at: Sequence[int] = (6, 7, 8),
        experts: int = 6,
        exclusive: int = 1,
        top_k: int = 5,
        noise: float = 0.01,
        sample: str = "gumbel",
        tse: bool = True,
        view_loss: bool = True,
        ortho_loss: bool = True,
        id_loss: bool = True,
        objective: str = "itc",
        temperature: float = 0.01,
        soft_label: float = 0.5,
        id_weight: float = 0.5,
        view_weight: float = 1.0,
        ortho_weight: float = 100.0,
        margin: float = 0.001,
        tse_share: float = 0.3,
        tse_width: int = 1024,
        text_dropout: float = 0.05,
        gather: bool = True,
    ):
        super().__init__()
        routers: dict[str, Any] = {"experts": experts, "top_k": top_k, "noise": noise}
        if block == "hr_moe":
            self.view_source = "predicted"
            routers |= {"exclusive": exclusive, "sample": sample}
        elif view_loss or ortho_loss:
            raise InputError(f"view_loss and ortho_loss need block='hr_moe', not {block!r}: set both to False")
        self.image, self.text = ImageEncoder(clip.image, block, at, **routers), clip.text
        if block == "hr_moe" and not view_loss:
            self.image.freeze_image_routers()
        set_text_dropout(clip.text, require_within("text_dropout", text_dropout, 0, 1))
        width, words = clip.image.embed_dim, clip.text.length - 2
        self.image_local = TokenSelection(width, clip.image.num_patches, tse_share, tse_width) if tse else None
        self.text_local = TokenSelection(width, words, tse_share, tse_width) if tse else None
        self.classifier = _build_classifier(width, identities) if id_loss and identities > 1 else None
        self.id_loss = IdentityLoss(id_weight)
        self.decoupling = Decoupling(
            ViewLoss(view_weight) if view_loss else None, OrthogonalHinge(ortho_weight, margin) if ortho_loss else None
        )
        self.alignment = _build_alignment(objective, gather)
        self.objectives = nn.ModuleDict() if objectives is None else objectives
        self.logit_scale = _build_logit_scale(temperature) if objective == "itc" else None
        self.soft_label = require_within("soft_label", soft_label, 0, 1)

    def encode(self, batch: Batch) -> PairOutputs:
        """Run the towers on the images and sentences of a batch, or on those it has."""
        if batch.images is None and batch.tokens is None:
            raise InputError("the batch has neither images nor tokens: give one of them, and both in training")
        images = None if batch.images is None else self._read_images(batch.images)
        return PairOutputs(images, None if batch.tokens is None else self._read_texts(batch.tokens))

    def finish(self, encoded: PairOutputs, batch: Batch) -> TAGCLIPOutputs:
        """Return features, and in training logits, from the outputs of the towers."""
        images = None if encoded.images is None else self.image_features(encoded.images)
        texts = None
        if encoded.texts is not None:
            texts = self.text_features(encoded.texts, require_given("tokens", batch.tokens))
        if not self.training or self.classifier is None:
            return TAGCLIPOutputs(images, texts)
        logits = [None if one is None else self.classifier(one.pooled) for one in (images, texts)]
        return TAGCLIPOutputs(images, texts, *logits)

    def encode_images(self, images: Tensor) -> ImageFeatures:
        """Return the features of images: (B, 3, rows, cols)."""
        return self.image_features(self._read_images(images))

    def encode_texts(self, tokens: Tensor) -> TextFeatures:
        """Return the features of sentences: (B, L)."""
        return self.text_features(self._read_texts(tokens), tokens)

    def image_features(self, encoded: TowerOutputs) -> ImageFeatures:
        """Return the features of images from the outputs of the tower."""
        selected = _select_local(self.image_local, encoded, mask_patches(encoded.tokens))
        return ImageFeatures(to_full_precision(encoded.tokens[:, 0]), selected, encoded.routed)

    def text_features(self, encoded: TowerOutputs, tokens: Tensor) -> TextFeatures:
        """Return the features of sentences from the outputs of the tower and their tokens: (B, L)."""
        selected = _select_local(self.text_local, encoded, mask_words(self.text.find_ends(tokens), tokens.shape[1]))
        return TextFeatures(to_full_precision(self.text.pool(encoded.tokens, tokens)), selected)

    def losses(self, outputs: TAGCLIPOutputs, batch: Batch) -> dict[str, Tensor]:
        """Return the weighted terms of Eqs. 11-13."""
        images, texts = outputs.images, outputs.texts
        if images is None or texts is None:
            raise InputError("TAG-CLIP learns from pairs: give the batch images and tokens, one caption an image")
        pids = require_given("pids", batch.pids)
        terms = self._align(images.pooled, texts.pooled, pids, "")
        if images.selected is not None and texts.selected is not None:
            terms |= self._align(images.selected.features, texts.selected.features, pids, "_local")
        if outputs.image_logits is not None:
            both = [self.id_loss(logits, pids) for logits in (outputs.image_logits, outputs.text_logits)]
            terms["loss_id"] = (both[0] + both[1]) / 2
        head = HeadOutputs(images.pooled, images.embedding, outputs.image_logits)
        further = {f"loss_{name}": objective(head, batch) for name, objective in self.objectives.items()}
        return terms | self.decoupling(images.routed, batch.views) | further

    def embed(self, outputs: TAGCLIPOutputs) -> Tensor:
        """Return the features of images, or of sentences in a batch without images; see `Features.embedding`."""
        return require_given("texts", outputs.texts if outputs.images is None else outputs.images).embedding

    @property
    def predicts_views(self) -> bool:
        """Whether routers learn to predict the views of images."""
        return self.decoupling.view is not None

    def predicted_views(self, outputs: TAGCLIPOutputs) -> Tensor | None:
        """Return the views predicted by the routers, (B,); None where they do not learn to."""
        if not self.predicts_views or outputs.images is None:
            return None
        routed = outputs.images.routed
        probabilities = [one.logits.softmax(dim=1) for one in routed if one.logits is not None]  # blocks of (B, V)
        return torch.stack(probabilities).mean(dim=0).argmax(dim=1)

    def _read_images(self, images: Tensor) -> TowerOutputs:
        return self.image(images, attention=self.image_local is not None)

    def _read_texts(self, tokens: Tensor) -> TowerOutputs:
        return read_texts(self.text, tokens, attention=self.text_local is not None)

    def _align(self, images: Tensor, texts: Tensor, pids: Tensor, part: str) -> dict[str, Tensor]:
        terms, scale = {}, None if self.logit_scale is None else clamp_scale(self.logit_scale)
        for name, loss in self.alignment.items():
            further = {"soft_label": self.soft_label} if name == "nitc" else {}
            terms[f"loss_{name}{part}"] = loss(images, texts, pids, scale, **further)
        return terms


def clamp_scale(logit_scale: Tensor) -> Tensor:
    """Return the scale of cosines, at most 100, with a gradient at the bound, too: () -> ().

    CLIP's scale is 100, or a rounding above it. Without a gradient there it would never change.
    """
    return logit_scale.detach().exp().clamp(max=MOST_SCALE) * (logit_scale - logit_scale.detach()).exp()


def _select_local(selection: TokenSelection | None, encoded: TowerOutputs, allowed: Tensor) -> SelectedTokens | None:
    return None if selection is None else selection(encoded.tokens, encoded.attention, allowed)


def _build_alignment(objective: str, gather: bool) -> nn.ModuleDict:
    if require_known("objective", objective, OBJECTIVES) == "sdm":
        return nn.ModuleDict({"sdm": SDMLoss(gather=gather)})
    return nn.ModuleDict({"nitc": NITC(gather=gather), "ritc": RITC(gather=gather)})


def _build_logit_scale(temperature: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(math.log(1 / require_within("temperature", temperature, 0.01, 1))))


def _build_classifier(width: int, identities: int) -> nn.Linear:
    classifier = nn.Linear(width, identities)
    nn.init.normal_(classifier.weight, std=0.001)
    nn.init.zeros_(classifier.bias)
    return classifier
