from types import SimpleNamespace

import torch

from agreid_plugin.losses import FeatureLoss, IdentityLoss, LogitLoss, OrthogonalLoss, OutputLoss, TripletLoss, ViewLoss
from agreid_plugin.types import Batch, HeadOutputs

BATCH = Batch(pids=torch.tensor([0, 0, 1, 1]), views=torch.tensor([0, 1, 1, 0]))


def test_losses_find_what_they_are_computed_on():
    generator = torch.Generator().manual_seed(0)
    features, view_features = (torch.randn(4, 3, generator=generator) for _ in range(2))
    logits = torch.randn(4, 2, generator=generator)
    head = HeadOutputs(features, embedding=-features, logits=logits)
    assert LogitLoss(IdentityLoss())(head, BATCH) == IdentityLoss()(logits, BATCH.pids)
    assert FeatureLoss(TripletLoss())(head, BATCH) == TripletLoss()(features, BATCH.pids)

    outputs = SimpleNamespace(features=features, view_features=view_features, view_logits=logits)
    orthogonal = OutputLoss(OrthogonalLoss(), ("features", "view_features"))
    assert orthogonal(outputs, BATCH) == OrthogonalLoss()(features, view_features)
    of_views = OutputLoss(ViewLoss(), ("view_logits",), ("views",))
    assert of_views(outputs, BATCH) == ViewLoss()(logits, BATCH.views)
