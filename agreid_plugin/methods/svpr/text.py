"""Sentences of SVPR-ReID about views and attributes, with learned prompts, encoded by CLIP's frozen text tower.

A batch has few distinct sentences: each is encoded once, up to the last position that is read, and its result given to
all its images. The tower is causal, so later tokens change nothing. `encode_per_image` is the plain form.

Shapes: B images, N sentences of L tokens, n prompts of the text tower's width D, E width of its outputs, M attributes,
W words of views.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from agreid_plugin.data.attributes import AttributeSchema, is_known
from agreid_plugin.data.sentences import (
    build_attribute_sentence,
    build_view_sentence,
    prompt_positions,
    view_word_position,
)
from agreid_plugin.errors import InputError, require_given, require_known
from agreid_plugin.nn.clip import TextTower
from agreid_plugin.nn.view_predictor import ViewClasses
from agreid_plugin.types import PLATFORMS, UNKNOWN, Batch, View, known_or

VIEW, ATTRIBUTES = "view", "attributes"
Row = tuple[int, ...]  # the labels that a sentence names
WORDS = {"cctv": "ground", "wearable": "ground", "uav": "aerial"}
"""The paper's two words."""


class ViewWords(ViewClasses):
    """View classes by the word of each platform, in the order cctv, wearable, uav, equal words once.

    Attributes:
        distinct: the words, by class.
        inputs: fields of a `Batch` that a word depends on: views, and platforms if wearables have another word.

    Example:
        >>> words = ViewWords()
        >>> words.distinct
        ('ground', 'aerial')
        >>> words.encode(views=torch.tensor([View.AERIAL, View.GROUND, UNKNOWN]))
        tensor([ 1,  0, -1])
    """

    def __init__(self, words: Mapping[str, str] = WORDS):
        for platform in words:
            require_known("platform in words", platform, PLATFORMS)
        for platform in WORDS:
            if not words.get(platform, "").strip():
                raise InputError(f"words has none for the platform {platform}: give one to each of {', '.join(WORDS)}")
        self.distinct = tuple(dict.fromkeys(words[platform] for platform in WORDS))
        if len(self.distinct) < 2:
            raise InputError(f"words has {self.distinct[0]!r} for every platform: views should differ in their words")
        self.by_platform = tuple(self.distinct.index(words[platform]) for platform in PLATFORMS)
        self.inputs = frozenset({"views"})
        if words["wearable"] != words["cctv"]:
            self.inputs |= {"platforms"}

    def __len__(self) -> int:
        return len(self.distinct)

    def encode(self, views: Tensor, platforms: Tensor | None = None) -> Tensor:
        """Return each image's word, `UNKNOWN` without one: (B,), (B,) -> (B,).

        An aerial image has the word of a drone. A ground image has that of its platform where the words differ.
        """
        table = torch.tensor([*self.by_platform, UNKNOWN], device=views.device)  # the last also answers to UNKNOWN
        ground = table[platforms] if "platforms" in self.inputs else table[PLATFORMS.index("cctv")]
        aerial = table[PLATFORMS.index("uav")]
        return ground.where(views == View.GROUND.value, aerial.where(views == View.AERIAL.value, UNKNOWN))

    def decode(self, classes: Tensor, batch: Batch) -> Batch:
        """Return a batch in which views and platforms of these words stand for unknown ones.

        A word of several platforms stands for the first.
        """
        views, platforms = self._views(classes.device)[classes], self._platforms(classes.device)[classes]
        return batch.with_(views=known_or(batch.views, views), platforms=known_or(batch.platforms, platforms))

    def mask(self, logits: Tensor, views: Tensor | None) -> Tensor:
        """Return the logits without the words that a known view excludes: (B, words), (B,) -> (B, words)."""
        if views is None:
            return logits
        other = (views[:, None] != UNKNOWN) & (self._views(logits.device) != views[:, None])
        return logits.masked_fill(other, -torch.inf)

    def _platforms(self, device: torch.device) -> Tensor:
        """Return the first platform of each word: (words,)."""
        return torch.tensor([self.by_platform.index(label) for label in range(len(self.distinct))], device=device)

    def _views(self, device: torch.device) -> Tensor:
        """Return the view of each word: (words,)."""
        aerial = self._platforms(device) == PLATFORMS.index("uav")
        return torch.where(aerial, int(View.AERIAL), int(View.GROUND))


@dataclass(frozen=True)
class ViewText:
    """Text outputs about each image's view."""

    prompts: Tensor  # (B, n, E) outputs at the prompts, P in Eq. 1
    key: Tensor  # (B, E) the key that they attend to, T in Eq. 1


class SentenceEncoder(nn.Module):
    """Text tower, learned prompts and the sentences that contain them.

    Args:
        tower: the text tower, frozen by the caller; gradients still reach the prompts.
        words: the views' words; empty without view sentences.
        schema: the attributes; None without attribute sentences.
        prompts: n.
        word_key, replaced: see `Variant`.
        style: of the attributes' sentences.
    """

    def __init__(
        self,
        tower: TextTower,
        words: Sequence[str],
        schema: AttributeSchema | None,
        prompts: int = 4,
        word_key: bool = False,
        replaced: bool = True,
        style: str = "paper",
    ):
        super().__init__()
        self.tower, self.words, self.schema = tower, tuple(words), schema
        self.prompts, self.word_key, self.replaced, self.style = prompts, word_key, replaced, style
        self.tokens: dict[str, Tensor] = {}  # sentence -> its tokens to the end
        self._cache: dict[tuple[str, Row], Tensor] = {}
        self._cache_state: tuple[Any, ...] | None = None
        self._check_lengths()
        self.view_prompts = self._draw_prompts() if words else None
        self.attribute_prompts = self._draw_prompts() if schema else None

    def traceable(self) -> nn.Module:
        """Return the outputs of test time as a table, a graph of fixed shape for exports."""
        return SentenceTable(self)

    def views(self, labels: Tensor, use_cache: bool = False) -> ViewText:
        """Return the text of views, with `use_cache` of earlier batches while no weight changes: (B,)."""
        outputs = self._encode_distinct(VIEW, labels[:, None], use_cache)
        return ViewText(outputs[:, :-1], outputs[:, -1])

    def attributes(self, labels: Tensor, use_cache: bool = False) -> Tensor:
        """Return T + Mean(P) of Eq. 5 for attributes, without unknown ones: (B, M) -> (B, E)."""
        return self._encode_distinct(ATTRIBUTES, labels, use_cache).squeeze(1)

    def encode(self, kind: str, rows: Sequence[Row], full_length: bool = False) -> Tensor:
        """Return the positions read of each row's sentence: (N, n + 1, E) of views, (N, 1, E) of attributes.

        Args:
            kind: `VIEW` or `ATTRIBUTES`.
            rows: the labels that the sentences name.
            full_length: encode sentences in the tower's full length, with the same result.
        """
        tokens = self._tokenize([self.sentence(kind, row) for row in rows])
        if full_length:
            tokens = F.pad(tokens, (0, self.tower.length - tokens.shape[1]))
        word = view_word_position(self.prompts)
        read = word + 1 if kind == VIEW and self.word_key and not full_length else tokens.shape[1]
        outputs = self._run(tokens[:, :read], *self._select_prompts(kind))
        at_prompts = outputs[:, prompt_positions(self.prompts)]
        if kind == ATTRIBUTES:
            return (self.tower.pool(outputs, tokens) + at_prompts.mean(dim=1)).unsqueeze(1)
        key = outputs[:, word] if self.word_key else self.tower.pool(outputs, tokens)
        return torch.cat([at_prompts, key.unsqueeze(1)], dim=1)

    def sentence(self, kind: str, row: Row) -> str:
        """Return the sentence that names these labels."""
        if kind == VIEW:
            if row[0] == UNKNOWN:
                raise InputError(
                    f"views or platforms have {UNKNOWN} (unknown), but a sentence names the view of every image"
                )
            return build_view_sentence(self.words[row[0]], self.prompts)
        schema = require_given("schema", self.schema)
        for label, (name, values) in zip(row, schema.groups.items(), strict=True):
            if not UNKNOWN <= label < len(values):
                raise InputError(f"attributes has {label} for {name!r}, which has {len(values)} values")
        return build_attribute_sentence(schema.decode(row), self.style, self.prompts)

    def train(self, mode: bool = True) -> SentenceEncoder:
        """Switch between training and evaluation, and clear the cache."""
        self._cache.clear()
        return super().train(mode)

    @torch.compiler.disable  # how many sentences there are differs from batch to batch
    def _encode_distinct(self, kind: str, labels: Tensor, use_cache: bool) -> Tensor:
        """Encode the distinct rows of labels, and return the result of each image's row."""
        distinct, place = labels.unique(dim=0, return_inverse=True)
        rows = [tuple(row) for row in distinct.tolist()]
        made = self._encode_cached(kind, rows) if use_cache and not torch.is_grad_enabled() else self.encode(kind, rows)
        return made[place]

    def _encode_cached(self, kind: str, rows: list[Row]) -> Tensor:
        state = self._read_state()
        if state is None:
            return self.encode(kind, rows)
        if state != self._cache_state:
            self._cache.clear()
            self._cache_state = state
        new = [row for row in rows if (kind, row) not in self._cache]
        if new:
            self._cache |= {(kind, row): made for row, made in zip(new, self.encode(kind, new), strict=True)}
        return torch.stack([self._cache[kind, row] for row in rows])

    def _read_state(self) -> tuple[Any, ...] | None:
        """Return a value that changes with any tensor a result depends on; None if changes are not counted."""
        tensors = list(chain(self.parameters(), self.buffers()))
        if any(each.is_inference() for each in tensors):  # these do not count their changes
            return None
        device = tensors[0].device.type
        precision = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
        return precision, tuple((each.data_ptr(), each._version, each.dtype, each.device) for each in tensors)

    def _tokenize(self, sentences: list[str]) -> Tensor:
        """Return the tokens of sentences, each to its end and zeros behind: (N, L)."""
        for sentence in sentences:
            if sentence not in self.tokens:
                row = self.tower.tokenize([sentence])
                self.tokens[sentence] = row[0, : self.tower.find_ends(row).item() + 1].cpu()
        rows = [self.tokens[sentence] for sentence in sentences]
        return pad_sequence(rows, batch_first=True).to(next(self.parameters()).device)

    def _select_prompts(self, kind: str) -> tuple[Tensor, bool]:
        if kind == VIEW:
            return require_given("words", self.view_prompts), True
        return require_given("schema", self.attribute_prompts), self.replaced

    def _run(self, tokens: Tensor, prompts: Tensor, replaced: bool) -> Tensor:
        """Run the tower on sentences with prompts: (N, L), (n, D) -> (N, L, E)."""
        embedded, at = self.tower.embed(tokens), prompt_positions(self.prompts)
        inserted = prompts.to(embedded.dtype).expand(len(tokens), -1, -1)
        inserted = inserted if replaced else embedded[:, at] + inserted
        return self.tower(tokens, torch.cat([embedded[:, : at.start], inserted, embedded[:, at.stop :]], dim=1))

    def _draw_prompts(self) -> nn.Parameter:
        return nn.Parameter(torch.randn(self.prompts, self.tower.width) * self.tower.width**-0.5)

    def _check_lengths(self) -> None:
        """Refuse sentences that the tower would cut, and words of several tokens where one position is read."""
        for word in self.words:
            size = self.tower.count(word) - 2
            if self.word_key and size != 1:
                raise InputError(f"word {word!r} should be one token, it is {size}: this variant reads one position")
        longest = [build_view_sentence(word, self.prompts) for word in self.words]
        if self.schema:
            known = {name: filter(is_known, values) for name, values in self.schema.groups.items()}
            values = {name: max(each, key=self.tower.count, default="") for name, each in known.items()}
            longest.append(build_attribute_sentence(values, self.style, self.prompts))
        for sentence in longest:
            if (tokens := self.tower.count(sentence)) > self.tower.length:
                raise InputError(
                    f"a sentence may have {tokens} tokens, but the text tower takes {self.tower.length}: build it with "
                    f"text_length={tokens} or more ({sentence[:60]}...)"
                )


def encode_per_image(
    text: SentenceEncoder, views: Tensor | None, attributes: Tensor | None
) -> tuple[ViewText | None, Tensor | None]:
    """Encode a sentence for every image, in full length: the plain form, as in the released code, with equal results.

    Args:
        text: the sentence encoder.
        views: (B,) or None.
        attributes: (B, M) or None.
    """
    of_view = of_attributes = None
    if views is not None:
        outputs = text.encode(VIEW, [(label,) for label in views.tolist()], full_length=True)
        of_view = ViewText(outputs[:, :-1], outputs[:, -1])
    if attributes is not None:
        of_attributes = text.encode(ATTRIBUTES, [tuple(row) for row in attributes.tolist()], full_length=True).squeeze(
            1
        )
    return of_view, of_attributes


class SentenceTable(nn.Module):
    """Outputs of a trained sentence encoder at test time, as a table: there are few words and no attributes.

    Args:
        text: the sentence encoder, whose tower is not kept.
    """

    view_table: Tensor | None  # (W, n + 1, E)
    empty_row: Tensor | None  # (1, E)

    def __init__(self, text: SentenceEncoder):
        super().__init__()
        self.schema = text.schema
        with torch.no_grad():
            views = text.encode(VIEW, [(label,) for label in range(len(text.words))]) if text.words else None
            empty = text.encode(ATTRIBUTES, [(UNKNOWN,) * len(text.schema)])[0] if text.schema else None
        self.register_buffer("view_table", views)
        self.register_buffer("empty_row", empty)

    def views(self, labels: Tensor, use_cache: bool = False) -> ViewText:  # noqa: ARG002 - all is cached
        """Return the text of views: (B,)."""
        outputs = require_given("words", self.view_table)[labels]
        return ViewText(outputs[:, :-1], outputs[:, -1])

    def attributes(self, labels: Tensor, use_cache: bool = False) -> Tensor:  # noqa: ARG002 - none is known in a test
        """Return the text of a sentence without attributes: (1, E)."""
        return require_given("schema", self.empty_row)
