"""Sentences for a text encoder: a person's attributes, the view of an image, and places of learned prompts.

Each has room for learned prompts at a fixed place: one letter X a prompt, which is a single token for CLIP.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from agreid_plugin.data.attributes import is_known
from agreid_plugin.errors import require_known, require_within

PROMPTS = 4
"""Default number of learned prompts."""

FIRST_PROMPT = 5
"""Place of the first X among CLIP's tokens: behind the start of the text and `a photo of a`."""

VIEW_WORD = 11
"""Place of the word for the view behind four prompts; see `view_word_position` for other numbers."""

_NEUTRAL = " Attributes are unknown."
_STYLES: dict[str, tuple[str, str, str]] = {  # before the first attribute, without any attribute, blank in a name
    "paper": (" person with attributes: ", " person." + _NEUTRAL, " "),
    "released": ("  person with the following attributes: ", "  person." + _NEUTRAL, "_"),
    "released-cp2108": ("  person with the following attributes: ", "  person.", "_"),
}
STYLES = tuple(_STYLES)
"""Ways to write a person's attributes: the paper's words, and the released code's for AG-ReID and for CP2108."""


def prompt_positions(prompts: int = PROMPTS) -> slice:
    """Return where the prompts stand among a sentence's tokens."""
    return slice(FIRST_PROMPT, FIRST_PROMPT + prompts)


def view_word_position(prompts: int = PROMPTS) -> int:
    """Return where the word for the view stands among the tokens of a `build_view_sentence`."""
    return VIEW_WORD + prompts - PROMPTS


def build_attribute_sentence(attributes: Mapping[str, str], style: str = "paper", prompts: int = PROMPTS) -> str:
    """Return the sentence of a person's attributes, or the neutral one if none is known, as at test time.

    Args:
        attributes: name -> value in the order of the sentence, as `AttributeSchema.decode` gives them; unknown values
            are left out.
        style: one of `STYLES`.
        prompts: how many X to leave room for.

    Example:
        >>> build_attribute_sentence({"gender": "male", "hair color": "black", "hat": "unknown"})
        'A photo of a X X X X person with attributes: gender is male, hair color is black.'
        >>> build_attribute_sentence({})
        'A photo of a X X X X person. Attributes are unknown.'
    """
    begin, neutral, blank = _STYLES[require_known("style of attribute sentences", style, STYLES)]
    known = [f"{name.replace(' ', blank)} is {value}" for name, value in attributes.items() if is_known(value)]
    return _opening(prompts) + (f"{begin}{', '.join(known)}." if known else neutral)


def build_view_sentence(word: str, prompts: int = PROMPTS) -> str:
    """Return the sentence of the view a picture was taken from, for example `aerial`."""
    return f"{_opening(prompts)} person from {word} view."


def build_person_sentence(prompts: int = PROMPTS) -> str:
    """Return the sentence with prompts only, which CLIP-ReID learns for each identity."""
    return f"{_opening(prompts)} person."


def _opening(prompts: int) -> str:
    require_within("prompts", prompts, 1, math.inf)
    return "A photo of a" + " X" * prompts
