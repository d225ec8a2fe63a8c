"""Garments over trunk, arms and legs."""

from __future__ import annotations

from functools import partial

import numpy as np

from agreid_plugin.synth.body import BLACK, SIDES, WHITE, Skeleton, add_head
from agreid_plugin.synth.people import Person
from agreid_plugin.synth.solids import TORSO, Builder, Material

_THICKNESS = {
    "t-shirt": 0.004,
    "tank top": 0.0,
    "shirt": 0.005,
    "sweater": 0.011,
    "hoodie": 0.015,
    "jacket": 0.017,
    "suit": 0.011,
    "coat": 0.022,
    "dress": 0.003,
}
_HEM = {"t-shirt": -0.07, "shirt": -0.09, "sweater": -0.05, "hoodie": -0.07, "jacket": -0.08, "suit": -0.13}
_TAILS = {"coat": (0.46, 1.55), "dress": (0.40, 1.65), "skirt": (0.36, 1.6)}  # how far down, how much wider
_SLEEVE = {"t-shirt": "short", "dress": "short", "tank top": "none"}
_TRIMS = {"jacket": "opening", "suit": "lapels", "coat": "buttons", "shirt": "placket", "hoodie": "zip"}
_STRAPS = {"backpack": "two straps", "shoulder bag": "strap"}
_LOWER = {"trousers": 0.014, "jeans": 0.008, "leggings": -0.004}


def dress(builder: Builder, person: Person, joints: Skeleton) -> None:
    """Add the whole clothed person but for what it carries."""
    skin = builder.material(Material("skin", person.colors["skin"], gloss=0.04))
    upper, lower = _upper_material(builder, person), _lower_material(builder, person)
    torso = _add_trunk(builder, person, joints, upper, lower)
    _add_arms(builder, person, joints, upper, skin)
    _add_legs(builder, person, joints, lower, skin)
    _add_skirts(builder, person, joints, (upper, lower), torso)
    _add_collar(builder, person, joints, upper)
    _add_shoes(builder, person, joints, skin)
    add_head(builder, person, joints, skin)


def _upper_material(builder: Builder, person: Person) -> int:
    worn, colors = person.attributes, person.colors
    trims = []
    if worn["upper"] in _TRIMS:
        trims.append((_TRIMS[worn["upper"]], colors["inner"] if worn["upper"] in ("jacket", "suit") else BLACK))
    if worn["upper"] == "suit":
        trims.append(("tie", colors["upper accent"]))
    if worn["bag"] in _STRAPS and person.straps:
        mirrored = worn["bag"] == "shoulder bag" and person.side < 0
        trims.append((_STRAPS[worn["bag"]] + (" mirrored" if mirrored else ""), colors["bag"]))
    wrinkle = 0.35 if worn["upper"] in ("sweater", "coat") else 0.5
    look = Material(
        "upper", colors["upper"], colors["upper accent"], worn["upper pattern"], person.period, tuple(trims), wrinkle
    )
    return builder.material(look)


def _lower_material(builder: Builder, person: Person) -> int:
    worn, colors = person.attributes, person.colors
    pattern = "denim" if worn["lower"] == "jeans" else worn["lower pattern"]
    period = person.period if worn["lower"] == "dress" else person.period * 0.7
    return builder.material(Material("lower", colors["lower"], colors["lower accent"], pattern, period, (), 0.45))


def _girths(person: Person, scale: float) -> tuple[float, float, float, float]:
    """Return the clothed half widths of hip, waist and chest in meters, and depth over width."""
    woman, extra = person.attributes["gender"] == "woman", _THICKNESS[person.attributes["upper"]]
    sizes = (0.158, 0.118, 0.132) if woman else (0.145, 0.134, 0.158)
    hip, waist, chest = ((size * person.girth + extra) * scale for size in sizes)
    return hip, waist, chest, 0.68 + 0.35 * max(0.0, person.girth - 1)


def _add_trunk(builder: Builder, person: Person, joints: Skeleton, upper: int, lower: int) -> int:
    """Add pelvis, belly, chest and shoulders; return the solid whose frame the trunk's pattern follows."""
    worn, scale, girth = person.attributes, joints.scale, person.girth
    woman, extra = worn["gender"] == "woman", _THICKNESS[worn["upper"]]
    hip, waist, chest, depth = _girths(person, scale)
    add = partial(builder.limb, front=joints.trunk[0], zone=TORSO)
    torso = builder.cone(
        joints.pelvis, joints.at(0, 0, 0.19), (hip, waist), upper, flat=depth, front=joints.trunk[0], zone=TORSO
    )
    seat = np.array((hip * depth, hip * 0.99, 0.1 * scale))
    builder.ball(
        joints.at(0, 0, -0.015), seat, lower, axis=joints.trunk[2], front=joints.trunk[0], zone=TORSO, frame_of=torso
    )
    add(joints.at(0, 0, 0.17), joints.at(0.005, 0, 0.34), (waist, chest), upper, flat=depth * 0.97, frame_of=torso)
    girdle = (0.064 + extra) * scale * (0.75 + 0.25 * girth)
    for shoulder in joints.shoulders:
        add(joints.at(0, 0, 0.40), shoulder, (girdle * 1.45, girdle * 0.9), upper, flat=0.85, frame_of=torso)
    add(joints.at(-0.01, 0, 0.42), joints.at(-0.005, 0, 0.485), (0.1 * scale, 0.06 * scale), upper, frame_of=torso)
    ball = partial(builder.ball, front=joints.trunk[0], axis=joints.trunk[2], zone=TORSO, frame_of=torso)
    if woman:
        for side in SIDES:
            ball(joints.at(0.062, side * 0.066, 0.315), np.array((0.066, 0.068, 0.066)) * scale * girth, upper)
    if worn["build"] == "heavy":
        ball(joints.at(0.045, 0, 0.11), np.array((0.125, 0.155, 0.15)) * scale * girth, upper)
    return torso


def _add_arms(builder: Builder, person: Person, joints: Skeleton, upper: int, skin: int) -> None:
    scale, extra = joints.scale, _THICKNESS[person.attributes["upper"]]
    sleeve = _SLEEVE.get(person.attributes["upper"], "long")
    thick = scale * (0.7 + 0.3 * person.girth)
    cover, more = (upper, extra * scale) if sleeve == "long" else (skin, 0.0)
    for shoulder, elbow, wrist in zip(joints.shoulders, joints.elbows, joints.wrists, strict=True):
        radii = (0.056 * thick + more, 0.043 * thick + more, 0.034 * thick + more)
        builder.limb(shoulder, elbow, radii[:2], cover, front=joints.trunk[0])
        builder.limb(elbow, wrist, radii[1:], cover, front=joints.trunk[0])
        along = (wrist - elbow) / np.linalg.norm(wrist - elbow)
        builder.ball(wrist + along * 0.06 * scale, np.array((0.038, 0.024, 0.062)) * scale, skin, axis=along)
        if sleeve == "short":
            end = shoulder + 0.6 * (elbow - shoulder)
            builder.ball(shoulder, np.full(3, 0.064 * thick), upper, front=joints.trunk[0])
            builder.cone(shoulder, end, (0.064 * thick, 0.066 * thick), upper, front=joints.trunk[0])


def _add_legs(builder: Builder, person: Person, joints: Skeleton, lower: int, skin: int) -> None:
    worn, scale = person.attributes["lower"], joints.scale
    thick = scale * (0.6 + 0.4 * person.girth)
    bare = worn in ("shorts", "skirt", "dress")
    skirted = worn in ("skirt", "dress")  # the thigh stays inside the cloth
    cover, extra = (skin, -0.004) if bare else (lower, _LOWER[worn])
    add = partial(builder.limb, material=cover, front=joints.trunk[0])
    for hip, knee, ankle in zip(joints.hips, joints.knees, joints.ankles, strict=True):
        add(hip, knee, ((0.06 if skirted else 0.074) * thick, 0.054 * thick + extra))
        calf = knee + 0.35 * (ankle - knee)
        add(knee, calf, (0.054 * thick + extra, 0.054 * thick + extra))
        add(calf, ankle, (0.054 * thick + extra, 0.038 * thick + extra))
        if worn == "shorts":
            end = hip + 0.82 * (knee - hip)
            builder.limb(hip, hip + 0.3 * (end - hip), (0.097 * thick, 0.094 * thick), lower, front=joints.trunk[0])
            builder.cone(hip, end, (0.097 * thick, 0.088 * thick), lower, front=joints.trunk[0])


def _add_skirts(builder: Builder, person: Person, joints: Skeleton, materials: tuple[int, int], torso: int) -> None:
    """Add what hangs from the waist: hems of tops, tails of coats, skirts."""
    worn, (upper, lower) = person.attributes, materials
    hip, waist, _, depth = _girths(person, joints.scale)
    add = partial(builder.cone, front=joints.trunk[0], zone=TORSO, frame_of=torso)
    if worn["upper"] in _HEM:
        wide = hip + 0.006 * joints.scale
        hem = joints.at(0, 0, _HEM[worn["upper"]])
        add(joints.at(0, 0, 0.04), hem, (wide * 0.98, wide * 1.04), upper, flat=max(0.74, depth * 1.02))
    for kind, material in ((worn["upper"], upper), (worn["lower"], lower)):
        if kind in _TAILS and not (kind == "dress" and material == upper):
            drop, flare = _TAILS[kind]
            top, flat = joints.at(0, 0, 0.15), 0.88
            middle, bottom = (joints.pelvis - np.array((0, 0, part * drop * joints.scale)) for part in (0.3, 1.0))
            wide = hip * (1 + 0.3 * (flare - 1))
            add(top, middle, (max(waist * depth / flat, 0.86 * waist), wide), material, flat=flat)
            add(middle, bottom, (wide, hip * flare), material, flat=flat)


def _add_collar(builder: Builder, person: Person, joints: Skeleton, upper: int) -> None:
    kind, scale = person.attributes["upper"], joints.scale
    if kind == "hoodie":
        size = np.array((0.07, 0.105, 0.07)) * scale
        builder.ball(joints.at(-0.085, 0, 0.475), size, upper, axis=joints.trunk[2], front=joints.trunk[0])
    if kind in ("shirt", "coat", "jacket", "suit", "sweater"):
        wide = 0.076 if kind == "coat" else 0.066
        top = 0.53 if kind in ("coat", "jacket") else 0.515
        builder.cone(joints.at(-0.005, 0, 0.46), joints.at(0, 0, top), (wide * scale * 1.2, wide * scale), upper)


def _add_shoes(builder: Builder, person: Person, joints: Skeleton, skin: int) -> None:
    kind, scale = person.attributes["shoes"], joints.scale
    shoe = builder.material(Material("shoes", person.colors["shoes"], gloss=0.25 if kind == "dress shoes" else 0.06))
    sole = builder.material(Material("", WHITE if kind == "sneakers" else BLACK))
    foot = skin if kind == "sandals" else shoe
    for knee, ankle, toe in zip(joints.knees, joints.ankles, joints.toes, strict=True):
        heel = ankle + (ankle - toe) * np.array((0.25, 0.25, 0.0)) - np.array((0, 0, 0.035 * scale))
        builder.limb(heel, toe, (0.042 * scale, 0.037 * scale), foot)
        builder.limb(ankle, 0.5 * (heel + toe), (0.042 * scale, 0.036 * scale), foot)
        drop = np.array((0, 0, 0.022 * scale))
        builder.limb(heel - drop, toe - drop, (0.038 * scale, 0.036 * scale), shoe if kind == "sandals" else sole)
        if kind == "boots":
            top = ankle + 0.5 * (knee - ankle)
            builder.cone(ankle, top, (0.052 * scale, 0.066 * scale), shoe)
        if kind == "sandals":
            strap = ankle + 0.6 * (toe - ankle)
            builder.ball(strap, np.array((0.02, 0.043, 0.04)) * scale, shoe, front=toe - ankle)
