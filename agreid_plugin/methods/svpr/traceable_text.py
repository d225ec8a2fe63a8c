"""What the text says at test time as a table, for a graph of fixed shape: there are few words and no attributes.

Shapes: B images, n prompts, E width of the text tower's outputs, W words of views.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from agreid_plugin.errors import require_given
from agreid_plugin.methods.svpr.text import ATTRIBUTES, VIEW, TextSide, ViewText
from agreid_plugin.types import UNKNOWN


class FixedText(nn.Module):
    """Stands in for a text side whose weights do not change any more; the tower is not kept.

    Args:
        text: the text side.
    """

    of_views: Tensor | None  # (W, n + 1, E)
    of_nothing: Tensor | None  # (1, E)

    def __init__(self, text: TextSide):
        super().__init__()
        self.schema = text.schema
        with torch.no_grad():
            views = text.encode(VIEW, [(label,) for label in range(len(text.words))]) if text.words else None
            untold = text.encode(ATTRIBUTES, [(UNKNOWN,) * len(text.schema)])[0] if text.schema else None
        self.register_buffer("of_views", views)
        self.register_buffer("of_nothing", untold)

    def views(self, labels: Tensor, remember: bool = False) -> ViewText:  # noqa: ARG002 - all is remembered
        """Return what the text says of views: (B,)."""
        outputs = require_given("words", self.of_views)[labels]
        return ViewText(outputs[:, :-1], outputs[:, -1])

    def attributes(self, labels: Tensor, remember: bool = False) -> Tensor:  # noqa: ARG002 - none is known in a test
        """Return what the text says where no attribute is known: (1, E)."""
        return require_given("schema", self.of_nothing)
