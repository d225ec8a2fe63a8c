"""CLIP baseline, and CLIP-ReID (AAAI 2023), which first learns a sentence for every identity.

CLIP-ReID trains twice. The first stage learns four words an identity, so that the sentence `A photo of a X X X X
person.` is close to the identity's images; nothing else changes. The second stage trains the image tower, with the
sentences as one more classifier.

Shapes: B images, I identities, K words, L tokens, C width of the image tower, D of the text tower, E of both projected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agreid_plugin.data.sentences import PROMPTS, build_person_sentence, prompt_positions
from agreid_plugin.errors import InputError, require_given, require_known
from agreid_plugin.losses import FeatureLoss, IdentityLoss, SupConLoss, clip_objectives
from agreid_plugin.nn.bnneck import BNNeck
from agreid_plugin.nn.clip import ImageTower, TextTower
from agreid_plugin.nn.clip_build import freeze
from agreid_plugin.types import Batch, HeadOutputs, ReIDMethod

NECKS = ("before", "after")
TEXTS_AT_ONCE = 256

MakeHead = Callable[[int, int], nn.Module]
"""Makes a head of a width and a number of classes."""


@dataclass(frozen=True)
class CLIPOutputs:
    """Outputs of both methods; the baseline has only the first part."""

    identity: HeadOutputs  # of CLS after the final norm, (B, C)
    projected: HeadOutputs | None = None  # of the same, projected: (B, E)
    before: HeadOutputs | None = None  # of CLS as it enters the last block, which has no head: (B, C)


class CLIPBaseline(ReIDMethod):
    """CLIP's image tower with one head: the baseline of SVPR-ReID's tables.

    Args:
        image: the tower; its projection is not used.
        identities: number of identities to train on.
        make_head: makes the head; None for `BNNeck`.
        objectives: name -> loss of the head; None for `clip_objectives` with a soft margin.
        neck: compare images by features `before` the head's norm or `after` it.
    """

    def __init__(
        self,
        image: ImageTower,
        identities: int,
        make_head: MakeHead | None = None,
        objectives: nn.ModuleDict | None = None,
        *,
        neck: str = "before",
    ):
        super().__init__()
        self.image = image
        image.freeze_projection()
        self.head = _shrink_classifier((make_head or BNNeck)(image.width, identities))
        self.objectives = clip_objectives() if objectives is None else objectives
        self.neck = require_known("neck", neck, NECKS)

    def forward(self, batch: Batch) -> CLIPOutputs:
        """Encode a batch and run the head."""
        return CLIPOutputs(self.head(self.image(batch.images).tokens[:, 0], batch.pids))

    def losses(self, outputs: CLIPOutputs, batch: Batch) -> dict[str, Tensor]:
        """Return the weighted terms."""
        return {f"loss_{name}_id": loss(outputs.identity, batch) for name, loss in self.objectives.items()}

    def embed(self, outputs: CLIPOutputs) -> Tensor:
        """Return the feature to compare images by: (B, C)."""
        return _select_feature(outputs.identity, self.neck)


class CLIPReID(ReIDMethod):
    """L = 0.25 sum of 2 L_id + sum of 3 L_tri + L_i2t: identities of two features, triplets of three, texts.

    The first stage is `learn_prompts`; before it has run, or weights with its result are loaded, there are no texts to
    train with. The text tower is always frozen, and the prompts are a buffer, which no optimizer sees. They are not in
    the state dict: the second stage needs only the texts' features, which are.

    Args:
        image: the image tower.
        text: the text tower.
        identities: number of identities to train on.
        make_head: makes a head of a width and a number of classes; None for `BNNeck`.
        objectives: name -> loss of each head, and for losses of features of the feature without a head; None for
            `clip_objectives` with a margin of 0.3.
        text_loss: of the products of projected features and texts, which are neither normalized nor scaled.
        neck: compare images by features `before` the heads' norms or `after` them.
    """

    prompts: Tensor  # (I, K, D) the learned words
    sentence: Tensor  # (1, L) tokens of the sentence, up to its end

    def __init__(
        self,
        image: ImageTower,
        text: TextTower,
        identities: int,
        make_head: MakeHead | None = None,
        objectives: nn.ModuleDict | None = None,
        text_loss: nn.Module | None = None,
        *,
        neck: str = "before",
    ):
        super().__init__()
        make_head = make_head or BNNeck
        self.image, self.text = image, text
        freeze(text, "all")
        self.head = _shrink_classifier(make_head(image.width, identities))
        self.projected_head = _shrink_classifier(make_head(image.embed_dim, identities))
        self.text_classifier = TextClassifier(identities, text.embed_dim)
        self.objectives = clip_objectives(margin=0.3) if objectives is None else objectives
        self.text_loss = IdentityLoss(smoothing=0.1, over_all=True) if text_loss is None else text_loss
        self.prompt_objective = SupConLoss(gather=False)  # every process learns them from all images
        self.neck = require_known("neck", neck, NECKS)
        self.register_buffer("prompts", 0.02 * torch.randn(identities, PROMPTS, text.width), persistent=False)
        self.register_buffer("sentence", _tokenize_sentence(text), persistent=False)

    def forward(self, batch: Batch) -> CLIPOutputs:
        """Encode a batch and run the heads."""
        encoded = self.image(batch.images)
        cls, before = encoded.tokens[:, 0], encoded.before[:, 0]
        identity = self.head(cls, batch.pids)
        projected = self.projected_head(self.image.project(cls), batch.pids)
        return CLIPOutputs(identity, projected, HeadOutputs(before, before))

    def losses(self, outputs: CLIPOutputs, batch: Batch) -> dict[str, Tensor]:
        """Return the weighted terms."""
        terms, projected = {}, require_given("projected", outputs.projected)
        for name, loss in self.objectives.items():
            terms[f"loss_{name}_id"] = loss(outputs.identity, batch)
            terms[f"loss_{name}_projected"] = loss(projected, batch)
            if isinstance(loss, FeatureLoss):
                terms[f"loss_{name}_before"] = loss(outputs.before, batch)
        return terms | {"loss_i2t": self.text_loss(self.text_classifier(projected.features), batch.pids)}

    def embed(self, outputs: CLIPOutputs) -> Tensor:
        """Return the feature and the projected one, side by side: (B, C + E)."""
        heads = outputs.identity, require_given("projected", outputs.projected)
        return torch.cat([_select_feature(head, self.neck) for head in heads], dim=1)

    @torch.no_grad()
    def image_features(self, images: Tensor) -> Tensor:
        """Return the features that the first stage compares with texts: (B, 3, rows, cols) -> (B, E)."""
        return self.image.project(self.image(images).tokens[:, 0])

    def text_features(self, labels: Tensor) -> Tensor:
        """Return the features of identities' sentences: (n,) -> (n, E).

        Only the tokens up to the sentence's end are computed: none of them attends to a later one.
        """
        tokens = self.sentence.expand(len(labels), -1)
        embedded = self.text.embed(tokens)  # (n, L, D)
        at = prompt_positions()
        embedded = torch.cat([embedded[:, : at.start], self.prompts[labels], embedded[:, at.stop :]], dim=1)
        return self.text.pool(self.text(tokens, embedded), tokens)

    def prompt_loss(self, image_features: Tensor, labels: Tensor) -> Tensor:
        """Return the first stage's loss, of images to texts and of texts to images: (B, E), (B,) -> ()."""
        identities, places = labels.unique(return_inverse=True)  # one sentence an identity is enough
        return self.prompt_objective(image_features, self.text_features(identities)[places], labels)

    @torch.no_grad()
    def keep_texts(self) -> None:
        """Compute the features of all identities' sentences, for the second stage to learn from."""
        labels = torch.arange(len(self.prompts), device=self.prompts.device)
        self.text_classifier.weight.copy_(torch.cat([self.text_features(part) for part in labels.split(TEXTS_AT_ONCE)]))


class TextClassifier(nn.Module):
    """A classifier whose weights are the features of sentences; zeros until they are computed or loaded."""

    weight: Tensor  # (I, E)

    def __init__(self, identities: int, width: int):
        super().__init__()
        self.register_buffer("weight", torch.zeros(identities, width))
        self._ready = False

    @property
    def ready(self) -> bool:
        """Whether there are sentences to learn from."""
        self._ready = self._ready or bool(self.weight.any())  # checked once: on a GPU it waits
        return self._ready

    def forward(self, features: Tensor) -> Tensor:
        """Return the products with every sentence: (B, E) -> (B, I)."""
        if not self.ready:
            raise InputError("CLIP-ReID has no texts to train with yet: run its first stage, `learn_prompts`")
        return F.linear(features, self.weight)


def _tokenize_sentence(text: TextTower) -> Tensor:
    sentence = build_person_sentence()
    if text.count(sentence) > text.length:
        raise InputError(f"text_length={text.length} should be {text.count(sentence)} or more: {sentence!r} is as long")
    return text.tokenize(sentence)[:, : text.count(sentence)]


def _shrink_classifier(head: nn.Module) -> nn.Module:
    """Draw a `BNNeck`'s classifier a tenth of its usual size, as released: rates of 5e-6 change it slowly."""
    if isinstance(head, BNNeck):
        nn.init.normal_(head.classifier.weight, std=0.001)
    return head


def _select_feature(head: HeadOutputs, neck: str) -> Tensor:
    return head.features if neck == "before" else head.embedding
