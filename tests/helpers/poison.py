"""A loss for tests of what happens when one goes wrong."""

import os

import torch
from torch import nn


class Poison(nn.Module):
    """A loss of features and identities that is as bad as can be in one call of one process."""

    def __init__(self, call: int, process: int = 0, value: float = float("nan")):
        super().__init__()
        self.call, self.process, self.value = call, process, value
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, features: torch.Tensor, pids: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        strikes = self.calls == self.call and int(os.environ.get("RANK", 0)) == self.process
        return features.square().mean() * (self.value if strikes else 1.0)
