"""The classifier of views, against a loop over patches, and that nothing else learns from it."""

import math
from functools import partial

import pytest
import torch
from draws import draw
from torch import Tensor, nn

from agreid_plugin.nn.view_predictor import ViewPredictor

drawn = partial(draw, seed=1)


def predictor(width: int = 4, **arguments) -> ViewPredictor:
    """With parameters that all are random, the norm's too."""
    torch.manual_seed(0)
    made = ViewPredictor(width, **{"hidden": 5} | arguments).double()
    for parameter in made.parameters():
        nn.init.normal_(parameter)
    return made


def slow_logits(made: ViewPredictor, patches: Tensor) -> Tensor:
    """One image, patch by patch: (N, D) -> (classes,)."""
    most = torch.full((made.hidden.out_features,), -math.inf, dtype=torch.float64)
    for patch in patches:
        normal = (patch - patch.mean()) / (patch.var(unbiased=False) + 1e-5).sqrt()
        inside = made.hidden.weight @ (normal * made.norm.weight + made.norm.bias) + made.hidden.bias
        most = torch.maximum(most, inside * (1 + torch.erf(inside / math.sqrt(2))) / 2)  # GELU
    return made.classifier.weight @ most + made.classifier.bias


@pytest.mark.parametrize("classes", [2, 3])
@torch.no_grad()
def test_logits_equal_the_slow_loop(classes):
    made, patches = predictor(classes=classes), drawn(3, 6, 4)
    for found, image in zip(made(patches), patches, strict=True):
        torch.testing.assert_close(found, slow_logits(made, image))


def test_the_classifier_learns_and_the_patches_do_not():
    made, patches = predictor(), drawn(2, 3, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda *_: made(patches), tuple(made.parameters()))
    made(patches).sum().backward()
    assert patches.grad is None
