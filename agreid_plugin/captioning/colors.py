"""Words for colors and which of them may mean the same thing."""

from __future__ import annotations

import re

_FAMILIES: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in ("black", "white", "blue", "red", "green", "yellow", "pink", "purple", "brown")},
    **dict.fromkeys(("gray", "grey", "silver"), ("gray",)),
    "orange": ("orange",),
    **dict.fromkeys(("beige", "sand"), ("beige",)),
    **dict.fromkeys(("blond", "blonde"), ("blond", "yellow")),
    "navy": ("blue",),
    "denim": ("blue",),
    **dict.fromkeys(("teal", "turquoise", "cyan", "aqua"), ("blue", "green")),
    **dict.fromkeys(("olive", "lime"), ("green",)),
    "khaki": ("beige", "green", "brown"),
    "tan": ("beige", "brown"),
    "camel": ("beige", "brown"),
    **dict.fromkeys(("cream", "ivory"), ("white", "beige")),
    **dict.fromkeys(("maroon", "burgundy"), ("red", "brown", "purple")),
    **dict.fromkeys(("crimson", "scarlet"), ("red",)),
    **dict.fromkeys(("violet", "lavender", "lilac"), ("purple",)),
    "magenta": ("pink", "purple"),
    **dict.fromkeys(("gold", "golden"), ("yellow", "blond")),
    "charcoal": ("gray", "black"),
    "brunette": ("brown",),
}


def families(text: str) -> frozenset[str]:
    """Return the families of all color words in a text; `navy` and `blue` share one."""
    return frozenset(family for word in re.findall(r"[a-z]+", text.lower()) for family in _FAMILIES.get(word, ()))
