"""Attributes of a synthetic person, colors by name, and the attributes as AG-ReID and CP2108 write them."""

from __future__ import annotations

from collections.abc import Mapping

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
_QUT: dict[str, tuple[str, dict[str, str]]] = {
    "gender": ("gender", {"man": "male", "woman": "female"}),
    "age": ("age", {"young": "young", "middle-aged": "middle", "elderly": "old"}),
    "height": ("height", {"short": "short", "medium": "medium", "tall": "tall"}),
    "weight": ("build", {"slim": "thin", "medium": "medium", "heavy": "fat"}),
    "haircolor": ("hair color", {"black": "black", "brown": "brown", "red": "red", "gray": "gray"}),
    "hairstyle": (
        "hair style",
        {"bald": "bald", "short": "short", "medium": "medium", "long": "long", "ponytail": "horsetail"},
    ),
    "beard": ("beard", {"no": "off", "yes": "on"}),
    "moustache": ("beard", {"no": "off", "yes": "on"}),
    "glasses": ("glasses", {"none": "off", "clear": "normal", "sun": "sun"}),
    "head": ("hat", {"cap": "hat", "beanie": "hat", "sun hat": "hat"}),
    "upper": (
        "upper",
        {
            "t-shirt": "tshirt",
            "tank top": "tshirt",
            "shirt": "shirt",
            "sweater": "sweater",
            "hoodie": "hoodie",
            "jacket": "coat",
            "suit": "suit",
            "coat": "coat",
            "dress": "dress",
        },
    ),
    "lower": (
        "lower",
        {
            "trousers": "pants",
            "jeans": "jeans",
            "leggings": "leggins",
            "shorts": "shorts",
            "skirt": "skirt",
            "dress": "dress",
        },
    ),
    "feet": (
        "shoes",
        {"sneakers": "sportshoe", "dress shoes": "classicshoe", "boots": "boots", "sandals": "sandals"},
    ),
    "bag": (
        "bag",
        {
            "none": "nothing",
            "backpack": "backpack",
            "shoulder bag": "normal",
            "handbag": "handbag",
            "shopping bag": "market",
            "suitcase": "rolling",
        },
    ),
}


def linear(rgb: Color) -> Color:
    """Turn an sRGB color of 0..255 into linear light of 0..1."""
    red, green, blue = (((c / 255 + 0.055) / 1.055) ** 2.4 if c > 10.31 else c / 255 / 12.92 for c in rgb)
    return red, green, blue


def darker(color: Color, share: float) -> Color:
    """Return a linear color with this share of its light."""
    red, green, blue = color
    return share * red, share * green, share * blue


def qut_labels(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return group -> value as AG-ReID's .mat file has them; `ethnic` and what has no word there are `unknown`."""
    labels = {group: words.get(attributes[name], "unknown") for group, (name, words) in _QUT.items()}
    if attributes["upper"] == "suit":
        labels["lower"] = "suit"
    if attributes["bag"] == "none" and attributes["umbrella"] == "yes":
        labels["bag"] = "umbrella"
    return labels | {"ethnic": "unknown"}


_CP2108: dict[str, str] = {
    "Gender": "gender",
    "Age": "age",
    "Height": "height",
    "Volume": "build",
    "Hair Color": "hair color",
    "Hair Style": "hair style",
    "Beard": "beard",
    "Glasses": "glasses",
    "Head Accessories": "hat",
    "Upper Clothing": "upper",
    "Upper Color": "upper color",
    "Upper Style": "upper pattern",
    "Lower Clothing": "lower",
    "Lower Color": "lower color",
    "Lower Style": "lower pattern",
    "Feet": "shoes",
    "Accessories": "bag",
    "Holding Phone": "phone",
}
_PER_PICTURE: dict[str, tuple[str, ...]] = {
    "Pose": ("Walking", "Standing"),
    "View": ("Front", "Back", "Side"),
    "Illumination": ("Normal_Light", "Low_Light"),
}
_WORDS = {"none": "Nothing", "no": "No", "yes": "Yes", "man": "Male", "woman": "Female", "ponytail": "HorseTail"}


def _cp2108_word(value: str) -> str:
    return _WORDS.get(value, value[0].upper() + value[1:].replace(" ", "_"))


def cp2108_labels(attributes: Mapping[str, str], pose: str, view: str, illumination: str) -> dict[str, str]:
    """Return CP2108's 22 attributes of one identity at one time in one view."""
    labels = {name: _cp2108_word(attributes[ours]) for name, ours in _CP2108.items()}
    return labels | {"Ethnicity": "Unknown", "Pose": pose, "View": view, "Illumination": illumination}


def cp2108_values() -> dict[str, dict[str, int]]:
    """Return attribute -> value -> index, for `attr_translation_idx.json`."""
    values = {name: [_cp2108_word(value) for value in ATTRIBUTES[ours]] for name, ours in _CP2108.items()}
    values |= {name: list(words) for name, words in _PER_PICTURE.items()} | {"Ethnicity": []}
    return {name: {word: place for place, word in enumerate([*values[name], "Unknown"])} for name in sorted(values)}
