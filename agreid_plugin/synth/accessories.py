"""Accessories of people: hats, bags, umbrellas, phones."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from agreid_plugin.synth.body import BLACK, Pose, Skeleton
from agreid_plugin.synth.people import Person
from agreid_plugin.synth.solids import Builder, Material
from agreid_plugin.synth.vocabulary import darker

STEEL = (0.3, 0.3, 0.32)


def add_belongings(builder: Builder, person: Person, pose: Pose, joints: Skeleton) -> None:
    """Add the hat, the bag, the umbrella and the phone."""
    if person.attributes["hat"] != "none":
        _add_hat(builder, person, joints)
    if person.attributes["bag"] != "none":
        look = Material("bag", person.colors["bag"], gloss=0.08, wrinkle=0.25)
        _BAGS[person.attributes["bag"]](builder, person, joints, builder.material(look))
    if person.attributes["umbrella"] == "yes":
        _add_umbrella(builder, person, pose, joints)
    if person.attributes["phone"] == "yes":
        hand = _hand(joints, -person.side)
        phone = builder.material(Material("phone", BLACK, gloss=0.5))
        half = np.array((0.006, 0.036, 0.075)) * joints.scale
        builder.box(hand + joints.trunk[0] * 0.03, half, phone, axis=joints.trunk[2], front=joints.trunk[0])


def _hand(joints: Skeleton, side: float) -> NDArray:
    index = 0 if side > 0 else 1
    return joints.wrists[index] + 0.28 * (joints.wrists[index] - joints.elbows[index])


def _add_hat(builder: Builder, person: Person, joints: Skeleton) -> None:
    scale = joints.scale
    hat = builder.material(Material("hat", person.colors["hat"], wrinkle=0.2))
    add = partial(builder.ball, material=hat, axis=joints.skull[2], front=joints.skull[0])
    if person.attributes["hat"] == "cap":
        add(joints.on_head(-0.008, 0, 0.045), np.array((0.116, 0.099, 0.1)) * scale, lowest=-0.1)
        add(joints.on_head(0.115, 0, 0.045), np.array((0.085, 0.075, 0.014)) * scale)
    if person.attributes["hat"] == "beanie":
        add(joints.on_head(-0.012, 0, 0.035), np.array((0.118, 0.101, 0.125)) * scale, lowest=-0.25)
        add(joints.on_head(-0.02, 0, 0.165), np.array((0.025, 0.025, 0.022)) * scale)
    if person.attributes["hat"] == "sun hat":
        add(joints.on_head(-0.005, 0, 0.05), np.array((0.118, 0.103, 0.1)) * scale, lowest=-0.1)
        add(joints.on_head(-0.005, 0, 0.05), np.array((0.215, 0.2, 0.02)) * scale)


def _add_backpack(builder: Builder, person: Person, joints: Skeleton, bag: int) -> None:
    scale, back = joints.scale, -0.125 - 0.05 * (person.girth - 1)
    add = partial(builder.limb, material=bag, front=joints.trunk[0])
    add(joints.at(back - 0.045, 0, 0.12), joints.at(back - 0.035, 0, 0.35), (0.145 * scale, 0.125 * scale), flat=0.72)
    add(joints.at(back - 0.135, 0, 0.1), joints.at(back - 0.125, 0, 0.18), (0.085 * scale, 0.085 * scale), flat=0.45)


def _add_shoulder_bag(builder: Builder, person: Person, joints: Skeleton, bag: int) -> None:
    scale = joints.scale
    center = joints.at(-0.02, person.side * (0.155 * person.girth + 0.055), -0.06)
    builder.limb(
        center - joints.trunk[0] * 0.09,
        center + joints.trunk[0] * 0.09,
        (0.1 * scale, 0.1 * scale),
        bag,
        flat=0.45,
        front=joints.trunk[1],
    )


def _add_handbag(builder: Builder, person: Person, joints: Skeleton, bag: int) -> None:
    scale, index = joints.scale, 0 if person.side > 0 else 1
    hook = 0.55 * joints.elbows[index] + 0.45 * joints.wrists[index]
    top = hook - np.array((0, 0, 0.15 * scale))
    out = joints.trunk[1] * person.side * 0.035 * scale
    for shift in (-0.05, 0.05):
        builder.cone(hook + out, top + out + joints.trunk[0] * shift, (0.009, 0.009), bag)
    half = np.array((0.15, 0.06, 0.105)) * scale
    builder.box(top + out - np.array((0, 0, 0.09 * scale)), half, bag, front=joints.trunk[0])


def _add_shopping_bag(builder: Builder, person: Person, joints: Skeleton, bag: int) -> None:
    scale, hand = joints.scale, _hand(joints, person.side)
    middle = hand - np.array((0, 0, 0.3 * scale)) + joints.trunk[1] * person.side * 0.03
    builder.cone(hand, hand - np.array((0, 0, 0.14 * scale)), (0.012, 0.05), bag)
    builder.box(middle, np.array((0.15, 0.065, 0.17)) * scale, bag, front=joints.trunk[0])


def _add_suitcase(builder: Builder, person: Person, joints: Skeleton, bag: int) -> None:
    scale, hand = joints.scale, _hand(joints, person.side)
    heading = np.array((*joints.trunk[0][:2], 0.0))
    tilt = np.array((0, 0, 1.0)) * 0.92 + heading * 0.39
    wheel = builder.material(Material("", BLACK))
    foot = hand - tilt * (hand[2] / tilt[2] - 0.05)
    middle = foot + tilt * 0.31 * scale
    builder.box(middle, np.array((0.11, 0.19, 0.28)) * scale, bag, axis=tilt, front=heading)
    builder.cone(hand, middle, (0.012, 0.012), builder.material(Material("", STEEL, gloss=0.3)))
    for side in (-0.15, 0.15):
        builder.ball(foot + joints.trunk[1] * side * scale, np.full(3, 0.04 * scale), wheel)


_BAGS = {
    "backpack": _add_backpack,
    "shoulder bag": _add_shoulder_bag,
    "handbag": _add_handbag,
    "shopping bag": _add_shopping_bag,
    "suitcase": _add_suitcase,
}


def _add_umbrella(builder: Builder, person: Person, pose: Pose, joints: Skeleton) -> None:
    """Add the umbrella over the shoulder of the free hand when open, hanging from it when folded."""
    scale, hand = joints.scale, _hand(joints, -person.side)
    color = person.colors["umbrella"]
    cloth = builder.material(Material("umbrella", color, darker(color, 0.6), "gores", wrinkle=0.1))
    if not pose.umbrella_open:
        builder.limb(hand, hand - np.array((0, 0, 0.55 * scale)), (0.028, 0.012), cloth)
        return
    lean = joints.trunk[2] - 0.12 * joints.trunk[0]
    top = hand + lean * 0.72 * scale
    builder.cone(hand - lean * 0.05, top, (0.012, 0.012), builder.material(Material("", STEEL)))
    builder.ball(
        top - lean * 0.27 * scale,
        np.array((0.5, 0.5, 0.28)) * scale,
        cloth,
        axis=lean / np.linalg.norm(lean),
        lowest=0.12,
    )
