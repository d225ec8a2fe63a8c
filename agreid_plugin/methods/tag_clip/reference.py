"""Reference form of HR-MoE: every expert runs on every token, as in the released code.

Slow on purpose; tests and `tools/bench` compare `hrmoe.Experts` with it, and exports need its graph of fixed shape.

Shapes: B images of N tokens, C width of a token, E experts.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from agreid_plugin.methods.tag_clip.hrmoe import Experts


class DenseExperts(Experts):
    """The weights of other experts, each of which runs on all tokens."""

    def __init__(self, experts: Experts):
        nn.Module.__init__(self)
        self.activation = experts.activation
        for name, parameter in experts.named_parameters():
            self.register_parameter(name, parameter)

    def forward(self, values: Tensor, weights: Tensor, *_: object) -> Tensor:
        """Return the weighted sum of the experts' outputs: (B, N, C), (B, N, E) -> (B, N, C)."""
        made = torch.stack([self.run(values, layers) for layers in self.unbind_layers()], dim=-2)  # (B, N, E, C)
        return torch.einsum("bne,bnec->bnc", weights.to(made.dtype), made)
