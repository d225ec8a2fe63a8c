"""What the model is asked: the three strategies of DTG, TAG-CLIP's caption generator, in the paper's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from agreid_plugin.captioning.attribute_words import NOT_OF_THE_PERSON, part_of, value_words, words
from agreid_plugin.captioning.templates import pick_template, stream
from agreid_plugin.data.attributes import is_known
from agreid_plugin.data.datasets.tree import normalize_name
from agreid_plugin.errors import InputError, require_known

PROMPT = (
    "Don't mention the background of the people in the image. Please provide a detailed description of this person's "
    "age, gender, top (including color and style), bottom (including color and style), hair (including color and "
    "style), shoes (including color and style), belongings (including color and style). Finally, combine all the "
    "details into a single sentence."
)
TEMPLATE = (
    "Generate a description about the overall appearance of the person, in a style similar to the template: "
    "{template}. If some requirements in the template are not visible, you can ignore. Do not imagine any contents "
    "not in the image."
)
ATTRIBUTE = (
    "Generate a description about the overall appearance of the person, based on the attribute: {label}, in a style "
    "similar to the template: {template}. If some requirements in the template are not visible, you can ignore. Do not "
    "imagine any contents that are not in the image."
)
KINDS = ("prompt", "template", "attribute")
STRATEGIES = ("paper", *KINDS)
"""`paper` asks twice an image, each of `KINDS` once."""


@dataclass(frozen=True)
class Ask:
    """One question about one image.

    Attributes:
        slot: which of the image's captions it asks for, from 0.
        kind: one of `KINDS`.
        text: what the model is told.
    """

    slot: int
    kind: str
    text: str

    def digest(self, attributes: Mapping[str, str]) -> str:
        """Return what tells this question from another one about the same image."""
        return sha256(repr((self.kind, self.text, sorted(attributes.items()))).encode()).hexdigest()[:16]


def label(attributes: Mapping[str, str]) -> str:
    """Write attributes for the model, for example `gender: male, hair color: black`.

    What says nothing of the person, such as the illumination, is left out, and so is the color of what is not there.
    """
    told = {name: value_words(name, value) for name, value in attributes.items() if is_known(value)}
    return ", ".join(f"{_readable(name)}: {value}" for name, value in told.items() if _of_the_person(name, value))


def asks(name: str, attributes: Mapping[str, str], strategy: str = "paper", seed: int = 0) -> tuple[Ask, ...]:
    """Return the questions about an image.

    As in the paper: with attributes one of kind `attribute` and a random one of the other two, without one `prompt`
    and one `template`; or one of the kind that is named.

    Args:
        name: the image, which together with the seed decides what is random.
        attributes: of the person, empty if nobody knows any.
        strategy: one of `STRATEGIES`.
        seed: another one, other templates.
    """
    require_known("strategy", strategy, STRATEGIES)
    told = label(attributes)
    if strategy == "attribute" and not told:
        raise InputError(f"{name}: strategy 'attribute' needs attributes; give --attributes or use strategy 'paper'")
    kinds = _paper(name, bool(told), seed) if strategy == "paper" else (strategy,)
    return tuple(Ask(slot, kind, _text(kind, told, pick_template(seed, name, slot))) for slot, kind in enumerate(kinds))


def _paper(name: str, described: bool, seed: int) -> tuple[str, ...]:
    if not described:
        return "prompt", "template"
    return "attribute", stream("kind", seed, name).choice(("prompt", "template"))


def _text(kind: str, told: str, template: str) -> str:
    whole = {"prompt": PROMPT, "template": TEMPLATE, "attribute": ATTRIBUTE}[kind]
    return whole.format(template=template, label=told)


def _of_the_person(name: str, value: str) -> bool:
    part, aspect = part_of(name)
    return part != NOT_OF_THE_PERSON and not (aspect == "color" and value == "no")


def _readable(name: str) -> str:
    # AG-ReID writes haircolor in one word.
    part, aspect = part_of(name)
    glued = part == "hair" and normalize_name(name) == "hair" + aspect
    return f"{part} {aspect}" if glued else words(name)
