"""The attributes of a synthetic person and their values, and the colors their names stand for."""

from __future__ import annotations

Color = tuple[float, float, float]
"""Red, green and blue."""

COLORS: dict[str, tuple[int, int, int]] = {
    "black": (30, 30, 33),
    "white": (226, 226, 222),
    "gray": (122, 124, 128),
    "navy": (34, 44, 78),
    "blue": (52, 96, 168),
    "red": (168, 40, 44),
    "green": (52, 104, 66),
    "yellow": (212, 172, 58),
    "pink": (216, 142, 160),
    "purple": (98, 62, 120),
    "brown": (96, 66, 46),
    "beige": (196, 176, 144),
}
"""Names used for everything worn or carried, as sRGB."""

SKIN: dict[str, tuple[int, int, int]] = {
    "light": (226, 182, 158),
    "tan": (200, 150, 118),
    "brown": (148, 100, 72),
    "dark": (92, 62, 48),
}

HAIR: dict[str, tuple[int, int, int]] = {
    "black": (26, 22, 22),
    "brown": (74, 50, 36),
    "blond": (186, 152, 98),
    "red": (136, 66, 38),
    "gray": (168, 166, 164),
}

_COLOR_NAMES = tuple(COLORS)

ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "gender": ("man", "woman"),
    "age": ("young", "middle-aged", "elderly"),
    "height": ("short", "medium", "tall"),
    "build": ("slim", "medium", "heavy"),
    "skin": tuple(SKIN),
    "hair style": ("bald", "short", "medium", "long", "ponytail", "bun"),
    "hair color": tuple(HAIR),
    "beard": ("no", "yes"),
    "glasses": ("none", "clear", "sun"),
    "hat": ("none", "cap", "beanie", "sun hat"),
    "hat color": ("none", *_COLOR_NAMES),
    "upper": ("t-shirt", "tank top", "shirt", "sweater", "hoodie", "jacket", "suit", "coat", "dress"),
    "upper color": _COLOR_NAMES,
    "upper pattern": ("plain", "striped", "checked", "dotted", "logo", "two-tone"),
    "lower": ("trousers", "jeans", "leggings", "shorts", "skirt", "dress"),
    "lower color": _COLOR_NAMES,
    "lower pattern": ("plain", "striped", "checked", "dotted"),
    "shoes": ("sneakers", "dress shoes", "boots", "sandals"),
    "shoe color": _COLOR_NAMES,
    "bag": ("none", "backpack", "shoulder bag", "handbag", "shopping bag", "suitcase"),
    "bag color": ("none", *_COLOR_NAMES),
    "umbrella": ("no", "yes"),
    "umbrella color": ("none", *_COLOR_NAMES),
    "phone": ("no", "yes"),
}
"""Name -> values. A dress is both the upper and the lower garment."""


def linear(rgb: Color) -> Color:
    """Turn an sRGB color of 0..255 into linear light of 0..1."""
    red, green, blue = (((c / 255 + 0.055) / 1.055) ** 2.4 if c > 10.31 else c / 255 / 12.92 for c in rgb)
    return red, green, blue


def darker(color: Color, share: float) -> Color:
    """Return a linear color with this share of its light."""
    red, green, blue = color
    return share * red, share * green, share * blue
