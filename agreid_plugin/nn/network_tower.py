"""Network of any library in the place of CLIP's image tower, beside CLIP's text tower.

Shapes: B images, P patches, C width of the network, E width of the text tower's outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from agreid_plugin.errors import InputError, require_given
from agreid_plugin.nn.clip import ImageTokens, ImageTower
from agreid_plugin.nn.network_adapters import TokenNetwork, adapt_network, name_network
from agreid_plugin.nn.patch_features import TokenTransformer
from agreid_plugin.nn.vit import to_pair

PROJECTIONS = (".proj", "head.proj.weight")
"""How names of open_clip's projections to the space of both towers end."""


class NetworkTower(ImageTower):
    """A ViT that is run block by block, or a network with a map, whose mean stands for CLS and whose depth is 0.

    Args:
        network: the network; see `adapt_network`.
        image_size: (rows, columns) of the images.
        embed_dim: E, for methods that compare images with texts: the network's own projection to this width, if it has
            one, or a new one.
    """

    def __init__(self, network: nn.Module, image_size: Sequence[int], embed_dim: int | None = None):
        nn.Module.__init__(self)
        self.name, self.image_size = name_network(network), to_pair("image_size", image_size)
        adapted = adapt_network(network, image_size)
        self.network: Any = TokenNetwork(network, image_size) if isinstance(adapted, TokenTransformer) else adapted
        self.width, self.embed_width, self.grid = adapted.width, adapted.embed_width, adapted.grid
        self.depth = self.network.depth if isinstance(self.network, TokenNetwork) and self.network.has_cls else 0
        self.num_patches, self.embed_dim = adapted.num_patches, embed_dim or 0
        known = [(name, each) for name, each in self.network.named_parameters() if name.endswith(PROJECTIONS)]
        self.own = next((name for name, each in known if set(each.shape) == {self.width, self.embed_dim}), "")
        if self.own:
            self.network.get_parameter(self.own).requires_grad_()  # frozen as unused
        new = embed_dim is not None and not self.own
        self.proj = nn.Parameter(torch.randn(self.width, self.embed_dim) * self.width**-0.5) if new else None

    @property
    def blocks(self) -> Any:
        """The blocks, of any kind."""
        return self.network.blocks if self.depth else nn.ModuleList()

    def patches(self, images: Tensor) -> Tensor:
        """Return the embedded patches: (B, 3, rows, cols) -> (B, P, embed width)."""
        return self.network.embed_patches(images)

    def start(self, images: Tensor) -> Tensor:
        """Return the tokens that enter the first block: CLS, patches, others."""
        return self.network.start(images)

    def enter(self, tokens: Tensor) -> Tensor:
        """Return tokens of a method as they are."""
        return tokens

    def end(self, tokens: Tensor) -> Tensor:
        """Return every token after the final norm."""
        return self.network.end(tokens)

    def project(self, tokens: Tensor) -> Tensor:
        """Take tokens after the final norm to the space of both towers: (..., C) -> (..., E)."""
        weight = self.network.get_parameter(self.own) if self.own else require_given("embed_dim", self.proj)
        return tokens @ (weight.T if self.own.endswith("weight") else weight)

    def forward(self, images: Tensor, extra: Tensor | None = None, at: int | None = None) -> ImageTokens:
        """Run the network; see `ImageTower`."""
        if self.depth:
            return super().forward(images, extra, at)
        features = self.network.patch_features(images)
        tokens = torch.cat([features.vector.unsqueeze(1), features.patches], dim=1)
        return ImageTokens(tokens, tokens)

    def cls_attention(self, tokens: Tensor) -> Tensor:
        """Return the attention of CLS in the last block, averaged over heads, from its input: (B, n, C) -> (B, n)."""
        block = self.blocks[-1]
        attention: Any = getattr(block, "attn", None)
        norm = getattr(block, "ln_1", getattr(block, "norm1", None))
        if isinstance(attention, nn.MultiheadAttention):
            return super().cls_attention(tokens)
        if norm is None or not hasattr(attention, "qkv"):
            raise InputError(f"the attention of {self.name}'s class token cannot be read: set tse to False")
        projected = attention.qkv(norm(tokens)).unflatten(-1, (3, self.network.heads, -1))
        query, key, _ = projected.permute(2, 0, 3, 1, 4).unbind(0)  # (B, heads, n, C / heads) each
        norms = (getattr(attention, name, nn.Identity()) for name in ("q_norm", "k_norm"))
        query, key = (norm(part) for norm, part in zip(norms, (query, key), strict=True))
        logits = query[:, :, :1] @ key.mT * getattr(attention, "scale", query.shape[-1] ** -0.5)
        return logits.softmax(dim=-1).mean(dim=1).squeeze(1)

    def freeze_projection(self) -> None:
        """Leave the projection, if there is one, as it is."""
        if self.own:
            self.network.get_parameter(self.own).requires_grad_(False)

    def freeze_patches(self) -> None:
        """Leave the embedding of patches as it is."""
        self.network.network.get_submodule(self.network.layout.embed).requires_grad_(False)
