"""The terms of SVPR-ReID, as printed and as released, their weights, and losses of one's own."""

import pytest
import torch
import torch.nn.functional as F
from small_svpr import batch, small_clip, small_svpr, without_dropout
from torch import nn

from agreid_plugin.losses import AttributeLoss, FeatureLoss, LogitLoss, OrthogonalLoss, TripletLoss, ViewLoss
from agreid_plugin.methods.svpr import SVPR
from agreid_plugin.nn.bnneck import BNNeck
from agreid_plugin.types import UNKNOWN

GROUND, AERIAL = 0, 1


def test_terms_of_the_paper():  # Eqs. 9-12
    method, data = small_svpr("paper"), batch()
    outputs = method(data)
    terms, made = method.losses(outputs, data), outputs.features
    joint = torch.cat([made.identity, made.refined.query, made.refined.local], dim=1)  # f_reid
    words = torch.tensor([AERIAL, GROUND, GROUND] * 2)
    attributes = sum(
        F.cross_entropy(logits, labels, ignore_index=UNKNOWN)  # Eq. 11
        for logits, labels in zip(made.attributes.logits, data.attributes.T, strict=True)
    )
    cosines = F.cosine_similarity(made.identity, made.view)
    expected = {
        "loss_cls": 0.25 * F.cross_entropy(outputs.identity.logits, data.pids, label_smoothing=0.1),
        "loss_triplet": TripletLoss()(joint, data.pids),
        "loss_view": F.cross_entropy(outputs.view.logits, words),
        "loss_orthogonal": cosines.abs().mean(),
        "loss_view_predictor": F.cross_entropy(outputs.predicted, words),
        "loss_attributes": 0.1 * attributes,
    }
    assert list(terms) == list(expected)
    for name, term in terms.items():
        torch.testing.assert_close(term, expected[name], msg=name)
    torch.testing.assert_close(outputs.identity.features, joint)


def test_terms_as_released():
    method, data = small_svpr("released"), batch()
    outputs = method(data)
    terms, made = method.losses(outputs, data), outputs.features
    parts = {"": made.identity, "_cvpr": made.refined.query, "_local": made.refined.local}
    heads = {"": outputs.identity, "_cvpr": outputs.cvpr, "_local": outputs.local}
    words = torch.tensor([AERIAL, GROUND, GROUND] * 2)
    probabilities = F.one_hot(words, 3) * 0.9 + 0.1 / 3  # three identities: here by chance what 3 classes would give
    expected = {}
    for place, (ending, head) in enumerate(heads.items()):
        weight = 0.25 * (0.5 if place else 1)
        expected[f"loss_cls{ending}"] = weight * F.cross_entropy(head.logits, data.pids, label_smoothing=0.1)
    for place, (ending, values) in enumerate((parts | {"_entering": made.entering}).items()):
        expected[f"loss_triplet{ending}"] = TripletLoss(1 / 3 if place else 1)(values, data.pids)
    expected |= {
        "loss_view": -(probabilities * outputs.view.logits.log_softmax(dim=1)).sum(dim=1).mean(),
        "loss_orthogonal": OrthogonalLoss()(made.identity, made.view),
        "loss_view_predictor": ViewLoss()(outputs.predicted, words),
        "loss_attributes": AttributeLoss(0.05)(made.attributes.logits, data.attributes),
    }
    assert list(terms) == list(expected)
    for name, term in terms.items():
        torch.testing.assert_close(term, expected[name], msg=name)


def test_released_views_are_smoothed_by_the_number_of_identities():
    clip = small_clip()
    loss = SVPR(clip.image, clip.text, 50, variant="released").view_loss
    logits, words = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    targets = F.one_hot(words, 3) * 0.9 + 0.1 / 50
    torch.testing.assert_close(loss(logits, words), -(targets * logits.log_softmax(dim=1)).sum(dim=1).mean())


def test_weights_of_the_terms():
    data = batch()
    plain = without_dropout(small_svpr(attribute_weight=1.0))
    weighted = without_dropout(small_svpr(view_weight=0.25, attribute_weight=0.5))
    ours, theirs = plain.losses(plain(data), data), weighted.losses(weighted(data), data)
    for name, factor in {"loss_view": 0.25, "loss_orthogonal": 0.25, "loss_attributes": 0.5}.items():
        torch.testing.assert_close(theirs[name], factor * ours[name])
    for name in ("loss_view_predictor", "loss_cls", "loss_triplet"):
        assert torch.equal(theirs[name], ours[name])


def test_orthogonality_as_printed():  # Eq. 10
    method, data = small_svpr(orthogonality="dot"), batch()
    outputs = method(data)
    made = outputs.features
    expected = sum((one @ other).abs().item() for one, other in zip(made.identity, made.view, strict=True))
    assert method.losses(outputs, data)["loss_orthogonal"].item() == pytest.approx(expected, rel=1e-5)


def test_heads_and_losses_of_ones_own():
    made = []

    def make_head(width: int, classes: int) -> BNNeck:
        made.append((width, classes))
        return BNNeck(width, classes)

    own = nn.ModuleDict({"metric": FeatureLoss(TripletLoss(0.5, margin=0.3)), "id": LogitLoss(nn.CrossEntropyLoss())})
    for variant, heads in (("paper", [(48, 3), (16, 2)]), ("released", [(16, 3)] * 3 + [(16, 3)])):
        made.clear()
        method, data = small_svpr(variant, make_head=make_head, objectives=own), batch()
        assert made == heads
        names = {name for name in method.losses(method(data), data) if name.startswith(("loss_metric", "loss_id"))}
        paper = {"loss_metric", "loss_id"}
        more = {"loss_metric_cvpr", "loss_metric_local", "loss_metric_entering", "loss_id_cvpr", "loss_id_local"}
        assert names == (paper if variant == "paper" else paper | more)
