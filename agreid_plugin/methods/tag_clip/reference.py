"""HR-MoE with every expert run on every token, as the released code has it: what the fast form is held against.

Slow on purpose; for tests, for benchmarks, and for exports: a graph of fixed shape cannot send images here or there.

Shapes: B images of N tokens, C width of a token, E experts.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from agreid_plugin.methods.tag_clip.hrmoe import Experts


class DenseExperts(Experts):
    """The weights of other experts, all of them run on all tokens, whatever their weight."""

    def __init__(self, experts: Experts):
        nn.Module.__init__(self)
        self.activation = experts.activation
        for name, parameter in experts.named_parameters():
            self.register_parameter(name, parameter)

    def forward(self, values: Tensor, weights: Tensor, *_: object) -> Tensor:
        """Add up what the experts make of tokens, times their weights: (B, N, C), (B, N, E) -> (B, N, C)."""
        made = torch.stack([self.run(values, layers) for layers in self.unbind_layers()], dim=-2)  # (B, N, E, C)
        return torch.einsum("bne,bnec->bnc", weights.to(made.dtype), made)
