"""Prompts of DTG, TAG-CLIP's caption generator: the three strategies in the paper's words, and sentence templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from random import Random

from agreid_plugin.captioning.attribute_words import NOT_APPEARANCE, describe_value, parse_part, split_words
from agreid_plugin.data.attributes import is_known
from agreid_plugin.data.datasets.tree import normalize_name
from agreid_plugin.errors import InputError, require_known

TEMPLATES: tuple[str, ...] = (
    # The person first, then clothing.
    "The [person/woman/man] is wearing [clothing description] and [footwear description], with [hair description], "
    "and is carrying [belongings description]",
    "A [person/woman/man] with [hair description] wears [clothing description], [footwear description] and "
    "[accessory description]",
    "The [person/woman/man] is dressed in [clothing description], sporting [accessory description], and has "
    "[hair description]",
    "A [person/woman/man] attired in [clothing description] and [footwear description] holds [belongings description]",
    "This [person/woman/man] has on [clothing description], paired with [footwear description], and carries "
    "[belongings description]",
    "The [person/woman/man] sports [clothing description] together with [accessory description] and walks in "
    "[footwear description]",
    "A [person/woman/man] clad in [clothing description] has [hair description] and wears [footwear description]",
    "The [person/woman/man] is in [clothing description], completed by [footwear description] and "
    "[accessory description], and bears [belongings description]",
    # The person first, then hair.
    "The [person/woman/man] has [hair description] and is wearing [clothing description] with [footwear description]",
    "A [person/woman/man], whose hair is [hair description], is attired in [clothing description] and carries "
    "[belongings description]",
    "With [hair description] and [accessory description], the [person/woman/man] is dressed in [clothing description]",
    "Having [hair description], the [person/woman/man] wears [footwear description] below [clothing description]",
    "The [person/woman/man] has [hair description], wears [accessory description] and [clothing description], and "
    "stands in [footwear description]",
    "A [person/woman/man] of [hair description] is sporting [clothing description] while carrying "
    "[belongings description]",
    # The person first, then belongings.
    "Carrying [belongings description], the [person/woman/man] is wearing [clothing description] and "
    "[footwear description]",
    "The [person/woman/man] carries [belongings description] and is dressed in [clothing description], with "
    "[hair description]",
    "With [belongings description] in hand, a [person/woman/man] is attired in [clothing description] and "
    "[accessory description]",
    "A [person/woman/man] holding [belongings description] has [hair description], [clothing description] and "
    "[footwear description]",
    "Equipped with [belongings description] and [accessory description], the [person/woman/man] wears "
    "[clothing description]",
    "The [person/woman/man] is seen with [belongings description], in [footwear description] and "
    "[clothing description]",
    # The person first, then footwear.
    "In [footwear description] and [clothing description], the [person/woman/man] carries [belongings description]",
    "The [person/woman/man] walks in [footwear description], dressed in [clothing description], with "
    "[hair description] and [accessory description]",
    "Wearing [footwear description], a [person/woman/man] with [hair description] is clad in [clothing description]",
    "A [person/woman/man] in [footwear description] is sporting [accessory description] and [clothing description]",
    "From [hair description] down to [footwear description], the [person/woman/man] is dressed in "
    "[clothing description]",
    # Clothing in front.
    "Dressed in [clothing description], the [person/woman/man] has [hair description] and carries "
    "[belongings description]",
    "Wearing [clothing description] and [footwear description], the [person/woman/man] has [hair description]",
    "Attired in [clothing description], with [accessory description], a [person/woman/man] carries "
    "[belongings description]",
    "Clad in [clothing description], a [person/woman/man] with [hair description] wears [footwear description] and "
    "[accessory description]",
    "Sporting [clothing description], the [person/woman/man] is walking in [footwear description] with "
    "[belongings description]",
    "In [clothing description] and with [hair description], the [person/woman/man] wears [accessory description]",
    "Outfitted in [clothing description] and [footwear description], a [person/woman/man] has [accessory description] "
    "and [belongings description]",
    # Accessories in front.
    "Wearing [accessory description], the [person/woman/man] is dressed in [clothing description] and "
    "[footwear description]",
    "The [person/woman/man] wears [accessory description] over [hair description], along with [clothing description]",
    "Sporting [accessory description] and [footwear description], a [person/woman/man] is attired in "
    "[clothing description]",
    "With [accessory description], [hair description] and [belongings description], the [person/woman/man] has on "
    "[clothing description]",
    # The outfit as the subject.
    "The outfit of the [person/woman/man] consists of [clothing description], [footwear description] and "
    "[accessory description]",
    "[clothing description] and [footwear description] make up the outfit of the [person/woman/man], who has "
    "[hair description] and carries [belongings description]",
    "The clothes of the [person/woman/man] are [clothing description], the shoes are [footwear description], and the "
    "hair is [hair description]",
    "The appearance of the [person/woman/man] is marked by [hair description], [clothing description], "
    "[footwear description] and [belongings description]",
)
"""Our templates, in the manner of Tan et al. 2024, whom TAG-CLIP follows; they end without a full stop."""
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


def seeded_random(*key: object) -> Random:
    """Return a generator seeded by a key, for example a seed and an image's name, the same on any machine."""
    return Random(sha256(repr(key).encode()).digest())


def pick_template(seed: int, name: str, slot: int = 0) -> str:
    """Return the template of an image's caption number `slot`, always the same one."""
    return seeded_random("template", seed, name, slot).choice(TEMPLATES)


@dataclass(frozen=True)
class Question:
    """One question about one image.

    Attributes:
        slot: which of the image's captions it asks for, from 0.
        kind: one of `KINDS`.
        text: what the model is labels.
    """

    slot: int
    kind: str
    text: str

    def digest(self, attributes: Mapping[str, str]) -> str:
        """Return a digest that differs between questions about the same image."""
        return sha256(repr((self.kind, self.text, sorted(attributes.items()))).encode()).hexdigest()[:16]


def format_attributes(attributes: Mapping[str, str]) -> str:
    """Format attributes for the model, for example `gender: male, hair color: black`.

    Attributes that are not of the person, such as the illumination, are left out, and colors of absent things.
    """
    labels = {name: describe_value(name, value) for name, value in attributes.items() if is_known(value)}
    return ", ".join(
        f"{_readable_name(name)}: {value}" for name, value in labels.items() if _is_appearance(name, value)
    )


def build_questions(
    name: str, attributes: Mapping[str, str], strategy: str = "paper", seed: int = 0
) -> tuple[Question, ...]:
    """Return the questions about an image.

    As in the paper: with attributes one of kind `attribute` and a random one of the other two, without one `prompt`
    and one `template`; or one of the kind that is named.

    Args:
        name: the image, which together with the seed decides the random choices.
        attributes: of the person, empty if unknown.
        strategy: one of `STRATEGIES`.
        seed: another one, other templates.
    """
    require_known("strategy", strategy, STRATEGIES)
    labels = format_attributes(attributes)
    if strategy == "attribute" and not labels:
        raise InputError(f"{name}: strategy 'attribute' needs attributes; give --attributes or use strategy 'paper'")
    kinds = _choose_paper_kinds(name, bool(labels), seed) if strategy == "paper" else (strategy,)
    texts = [_fill_prompt(kind, labels, pick_template(seed, name, slot)) for slot, kind in enumerate(kinds)]
    return tuple(Question(slot, kind, text) for slot, (kind, text) in enumerate(zip(kinds, texts, strict=True)))


def _choose_paper_kinds(name: str, described: bool, seed: int) -> tuple[str, ...]:
    if not described:
        return "prompt", "template"
    return "attribute", seeded_random("kind", seed, name).choice(("prompt", "template"))


def _fill_prompt(kind: str, labels: str, template: str) -> str:
    prompt = {"prompt": PROMPT, "template": TEMPLATE, "attribute": ATTRIBUTE}[kind]
    return prompt.format(template=template, label=labels)


def _is_appearance(name: str, value: str) -> bool:
    part, aspect = parse_part(name)
    return part != NOT_APPEARANCE and not (aspect == "color" and value == "no")


def _readable_name(name: str) -> str:
    # AG-ReID writes haircolor in one word.
    part, aspect = parse_part(name)
    glued = part == "hair" and normalize_name(name) == "hair" + aspect
    return f"{part} {aspect}" if glued else split_words(name)
