"""Augmentations of tensor images and whole batches: PLRM, and the two that VIF-AGReID compares it with."""

from agreid_plugin.data.transforms.plrm import (
    PLRM,
    PatchShuffle,
    RandomRotation,
    patch_probabilities,
    rotate,
    rotate_patches,
    rotation_grid,
    shuffle_pixels,
)

__all__ = [
    "PLRM",
    "PatchShuffle",
    "RandomRotation",
    "patch_probabilities",
    "rotate",
    "rotate_patches",
    "rotation_grid",
    "shuffle_pixels",
]
