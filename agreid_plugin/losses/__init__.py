"""Losses on embeddings, each a small module that knows no host."""

from agreid_plugin.losses.vial import VIAL

__all__ = ["VIAL"]
