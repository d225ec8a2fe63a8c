"""A synthetic person's attributes in the words of AG-ReID and of CP2108."""

from __future__ import annotations

from collections.abc import Mapping

from agreid_plugin.synth.vocabulary import ATTRIBUTES

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


def _word(value: str) -> str:
    return _WORDS.get(value, value[0].upper() + value[1:].replace(" ", "_"))


def cp2108_labels(attributes: Mapping[str, str], pose: str, view: str, illumination: str) -> dict[str, str]:
    """Return CP2108's 22 attributes of one identity at one time in one view."""
    labels = {name: _word(attributes[ours]) for name, ours in _CP2108.items()}
    return labels | {"Ethnicity": "Unknown", "Pose": pose, "View": view, "Illumination": illumination}


def cp2108_values() -> dict[str, dict[str, int]]:
    """Return attribute -> value -> index, for `attr_translation_idx.json`."""
    values = {name: [_word(value) for value in ATTRIBUTES[ours]] for name, ours in _CP2108.items()}
    values |= {name: list(words) for name, words in _PER_PICTURE.items()} | {"Ethnicity": []}
    return {name: {word: place for place, word in enumerate([*values[name], "Unknown"])} for name in sorted(values)}
