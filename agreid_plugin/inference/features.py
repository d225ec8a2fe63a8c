"""The one feature of an image that a head of any host goes on with, from what our backbones give."""

from __future__ import annotations

import torch
from torch import Tensor

from agreid_plugin.methods.visa import ViSAFeatures
from agreid_plugin.nn.clip import ImageTokens
from agreid_plugin.nn.view_token_vit import Encoded


def feature_of(outputs: Encoded | ViSAFeatures | ImageTokens) -> Tensor:
    """Return the class token, less the view's where there is one, and ViSA's local feature beside it: (B, D)."""
    if isinstance(outputs, Encoded):
        return outputs.identity
    if isinstance(outputs, ImageTokens):
        return outputs.tokens[:, 0]
    identity = outputs.encoded.identity
    return identity if outputs.local is None else torch.cat([identity, outputs.local], dim=1)
