"""Articulated body: a pose, the joints' places, and skin, head and hair on them.

Lengths are for a person of 1.75 m and scale with the height. Index 0 of a pair is the left side, 1 the right.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from agreid_plugin.synth.people import Person
from agreid_plugin.synth.solids import Builder, Material, cross

SIDES = (1.0, -1.0)
BLACK, WHITE = (0.012, 0.012, 0.014), (0.72, 0.72, 0.70)


@dataclass(frozen=True)
class Pose:
    """Pose of a person in one picture.

    Attributes:
        walking: whether the person walks; standing otherwise.
        phase: where in the step, radians.
        yaw: heading in the world, radians.
        head: turn of the head against the trunk, radians.
        umbrella_open: whether an umbrella, if carried, is open.
    """

    walking: bool
    phase: float
    yaw: float
    head: float = 0.0
    umbrella_open: bool = False

    @property
    def facing(self) -> str:
        """Which side of the person a camera looking along +x sees: `Front`, `Back` or `Side`."""
        along = np.cos(self.yaw)
        return "Back" if along > 0.7 else "Front" if along < -0.7 else "Side"


def draw_pose(rng: np.random.Generator) -> Pose:
    """Draw a pose: mostly walking, any heading."""
    return Pose(
        walking=bool(rng.random() < 0.75),
        phase=rng.uniform(0, 2 * np.pi),
        yaw=rng.uniform(0, 2 * np.pi),
        head=float(np.clip(rng.normal(0, 0.25), -0.7, 0.7)),
        umbrella_open=bool(rng.random() < 0.5),
    )


@dataclass(frozen=True)
class Skeleton:
    """Joints in the world and the two frames things are fastened to."""

    scale: float
    pelvis: NDArray
    trunk: NDArray  # (3, 3) rows front, left, up
    skull: NDArray  # (3, 3) rows front, left, up
    head: NDArray  # center of the head
    shoulders: NDArray  # (2, 3)
    elbows: NDArray
    wrists: NDArray
    hips: NDArray
    knees: NDArray
    ankles: NDArray
    toes: NDArray

    def at(self, front: float, left: float, up: float) -> NDArray:
        """Return the world point at these coordinates of the trunk, measured from the pelvis."""
        return self.pelvis + self.scale * (np.array((front, left, up)) @ self.trunk)

    def on_head(self, front: float, left: float, up: float) -> NDArray:
        """Return the world point at these coordinates of the head."""
        return self.head + self.scale * (np.array((front, left, up)) @ self.skull)


def _turn(yaw: float, lean: float = 0.0) -> NDArray:
    """Return rows front, left, up of a frame that heads to `yaw` and leans forward."""
    cos, sin = np.cos(yaw), np.sin(yaw)
    heading, left = np.array((cos, sin, 0.0)), np.array((-sin, cos, 0.0))
    front = heading * np.cos(lean) - np.array((0, 0, np.sin(lean)))
    return np.stack([front, left, cross(front, left)])


def _swing(frame: NDArray, angle: float, outward: float = 0.0) -> NDArray:
    """Return the direction of a hanging bone swung forward by `angle`."""
    return np.array((np.sin(angle), outward, -np.cos(angle))) @ frame


def skeleton(person: Person, pose: Pose, place: tuple[float, float] = (0.0, 0.0)) -> Skeleton:
    """Put the joints of `person` where `pose` says, standing on the ground at `place`."""
    scale = person.height / 1.75
    woman = person.attributes["gender"] == "woman"
    amplitude = 0.42 * person.stride * (0.72 if _wears_wide(person) else 1.0)
    amplitude = amplitude if pose.walking else 0.05
    hip_frame = _turn(pose.yaw + 0.1 * amplitude * np.sin(pose.phase))
    trunk = _turn(pose.yaw - 0.2 * amplitude * np.sin(pose.phase), person.lean)
    hips, knees, ankles, toes = _legs(scale, hip_frame, amplitude, pose.phase, 0.098 if woman else 0.092)
    lift = np.array((*place, 0.085 * scale - ankles[:, 2].min()))
    hips, knees, ankles, toes = (joint + lift for joint in (hips, knees, ankles, toes))
    toes[:, 2] = np.maximum(toes[:, 2], 0.04 * scale)
    pelvis = lift + np.array((0, 0, 0.02 * scale))
    breadth = (0.16 if woman else 0.183) * (0.7 + 0.3 * person.girth)
    skull = _turn(pose.yaw + pose.head, person.lean * 0.5)
    neck = pelvis + scale * (np.array((0.0, 0.0, 0.50)) @ trunk)
    shoulders = pelvis + scale * (np.array([(0.0, side * breadth, 0.415) for side in SIDES]) @ trunk)
    elbows, wrists = _arms(person, scale, trunk, amplitude, pose, shoulders)
    head = neck + scale * (np.array((0.02, 0.0, 0.165)) @ skull)
    return Skeleton(scale, pelvis, trunk, skull, head, shoulders, elbows, wrists, hips, knees, ankles, toes)


def _wears_wide(person: Person) -> bool:
    """Return whether something wide hangs from the waist: steps are shorter then, and arms farther out."""
    return person.attributes["lower"] in ("skirt", "dress") or person.attributes["upper"] == "coat"


def _legs(scale: float, frame: NDArray, amplitude: float, phase: float, spread: float) -> list[NDArray]:
    joints: list[list[NDArray]] = [[], [], [], []]
    for side, turn in zip(SIDES, (0.0, np.pi), strict=True):
        angle = amplitude * np.sin(phase + turn) + 0.04
        bend = 0.06 + 2.0 * amplitude * max(0.0, np.cos(phase + turn)) ** 2  # the knee bends while the leg swings
        hip = scale * side * spread * frame[1]
        knee = hip + scale * 0.43 * _swing(frame, angle)
        ankle = knee + scale * 0.425 * _swing(frame, angle - bend)
        pitch = (angle - bend) * 0.55
        toe = ankle + scale * (np.array((np.cos(pitch), side * 0.18, np.sin(pitch) - 0.22)) @ frame) * 0.165
        for joint, value in zip(joints, (hip, knee, ankle, toe), strict=True):
            joint.append(value)
    return [np.array(joint) for joint in joints]


def _arms(
    person: Person, scale: float, trunk: NDArray, amplitude: float, pose: Pose, shoulders: NDArray
) -> tuple[NDArray, NDArray]:
    elbows, wrists = [], []
    for side, turn, shoulder in zip(SIDES, (np.pi, 0.0), shoulders, strict=True):
        angle = 0.85 * amplitude * np.sin(pose.phase + turn)
        held = _held(person, side, pose)
        angle, bend = held or (angle, 0.22 + 0.5 * max(0.0, angle))
        outward = side * (0.13 + 0.08 * (person.girth - 1) + 0.1 * _wears_wide(person))
        elbow = shoulder + scale * 0.285 * _swing(trunk, angle, outward)
        elbows.append(elbow)
        wrists.append(elbow + scale * 0.25 * _swing(trunk, angle + bend, outward * 0.2 if bend < 1 else -outward))
    return np.array(elbows), np.array(wrists)


def _held(person: Person, side: float, pose: Pose) -> tuple[float, float] | None:
    """Return shoulder and elbow angles of an arm that holds something, None for a free one."""
    worn = person.attributes
    if side == person.side:
        return {"suitcase": (-0.32, 0.12), "handbag": (-0.1, 1.5), "shopping bag": (0.03, 0.1)}.get(worn["bag"])
    if worn["phone"] == "yes":
        return 0.3, 1.75
    return (0.45, 2.0) if worn["umbrella"] == "yes" and pose.umbrella_open else None


def add_head(builder: Builder, person: Person, joints: Skeleton, skin: int) -> None:
    """Add neck, head, face, ears and hair."""
    worn, scale = person.attributes, joints.scale
    trims = []
    if worn["beard"] == "yes":
        trims.append(("beard", person.colors["hair"]))
    if worn["glasses"] != "none":
        trims.append((f"{worn['glasses']} glasses", BLACK))
    face = builder.material(Material("face", person.colors["skin"], BLACK, "face", trims=tuple(trims), gloss=0.05))
    add = partial(builder.ball, axis=joints.skull[2], front=joints.skull[0])
    builder.cone(joints.at(0, 0, 0.46), joints.on_head(-0.02, 0, -0.02), (0.058 * scale, 0.05 * scale), skin)
    head = add(joints.head, np.array((0.100, 0.079, 0.122)) * scale, face)
    add(joints.on_head(0.028, 0, -0.06), np.array((0.068, 0.056, 0.068)) * scale, face, frame_of=head)
    add(joints.on_head(0.102, 0, -0.018), np.array((0.02, 0.013, 0.024)) * scale, skin)
    for side in SIDES:
        add(joints.on_head(-0.005, side * 0.08, -0.012), np.array((0.022, 0.012, 0.032)) * scale, skin)
    _add_hair(builder, person, joints)


def _add_hair(builder: Builder, person: Person, joints: Skeleton) -> None:
    style, scale = person.attributes["hair style"], joints.scale
    if style == "bald":
        return
    hair = builder.material(Material("hair", person.colors["hair"], pattern="strands", gloss=0.12, wrinkle=0.3))
    add = partial(builder.ball, material=hair, axis=joints.skull[2], front=joints.skull[0])
    flat = person.attributes["hat"] != "none"
    crown = (0.103, 0.088, 0.095) if flat else (0.108, 0.092, 0.112)
    add(joints.on_head(-0.026, 0, 0.034), np.array(crown) * scale)
    if style in ("medium", "long"):
        add(joints.on_head(-0.035, 0, -0.035), np.array((0.088, 0.102, 0.118)) * scale)
    if style == "long":
        start, end = joints.on_head(-0.07, 0, -0.03), joints.at(-0.12, 0, 0.27)
        builder.limb(start, end, (0.098 * scale, 0.085 * scale), hair, flat=0.52, front=joints.skull[0])
    if style == "ponytail":
        knot = joints.on_head(-0.115, 0, 0.045)
        add(knot, np.array((0.032, 0.032, 0.032)) * scale)
        builder.limb(knot, joints.on_head(-0.165, 0, -0.20), (0.034 * scale, 0.02 * scale), hair)
    if style == "bun":
        add(joints.on_head(-0.075, 0, 0.115), np.array((0.05, 0.05, 0.045)) * scale)
