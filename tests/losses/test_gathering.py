"""Losses of images and texts whose batches are spread over processes; `hosts/test_equivalence` has them all."""

import pytest
import torch
from processes import returned_by
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from agreid_plugin.losses import NITC, RITC, LoadBalanceLoss, SupConLoss
from agreid_plugin.losses.gathering import gather_features, gather_labels


def losses(gather: bool) -> dict[str, nn.Module]:
    return {"nitc": NITC(gather=gather), "ritc": RITC(gather=gather), "supcon": SupConLoss(gather=gather)}


class Towers(nn.Module):
    """Features of images and texts, and a learned scale that some losses use."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.images, self.texts = nn.Linear(5, 3), nn.Linear(4, 3)
        self.log_scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, images, texts):
        return self.images(images), self.texts(texts), self.log_scale.exp()


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    images, texts = (torch.randn(8, width, generator=generator) for width in (5, 4))
    return images, texts, torch.tensor([0, 1, 2, 2, 1, 0, 3, 2])  # people on both processes


def loss_and_gradients(model: nn.Module, loss: nn.Module, images, texts, pids) -> list[torch.Tensor]:
    model.zero_grad()
    of_images, of_texts, scale = model(images, texts)
    value = (
        loss(scale * of_images, of_texts, pids)
        if isinstance(loss, SupConLoss)
        else loss(of_images, of_texts, pids, scale)
    )
    value.backward()
    return [value.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


def balance(gather: bool, start: int = 0, stop: int = 8) -> torch.Tensor:
    """The loss of some images of a router, half of whose choices are the same for all."""
    probabilities = batch()[1].softmax(dim=1)
    choices = torch.zeros(8, 4).scatter(1, probabilities.argmax(dim=1, keepdim=True), 0.5)
    choices[:, 0] += 0.5
    members = torch.arange(8) % 3 > 0
    return LoadBalanceLoss(gather=gather)([[each[start:stop] for each in (probabilities, members, choices)]])


def train_one_step(rank: int) -> tuple:
    """One of two processes: its half of the pairs, gathered, and the averaged gradients."""
    model = DistributedDataParallel(Towers())
    half = [values[4 * rank : 4 * rank + 4] for values in batch()]
    found = {name: loss_and_gradients(model, loss, *half) for name, loss in losses(gather=True).items()}
    labels = gather_labels(torch.tensor([rank, 7]), torch.tensor([rank == 0, True]))
    return found, labels, balance(True, 4 * rank, 4 * rank + 4)


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """What two processes found, in the order of their ranks."""
    return returned_by(2, train_one_step, tmp_path_factory.mktemp("processes"))


@pytest.mark.parametrize("name", ["nitc", "ritc", "supcon"])
def test_two_processes_gather_to_the_loss_and_gradients_of_one(processes, name):
    expected = loss_and_gradients(Towers(), losses(gather=False)[name], *batch())
    assert len(processes) == 2
    for found, _, _ in processes:
        torch.testing.assert_close(found[name], expected)


def test_two_processes_balance_the_choices_of_both(processes):
    for _, _, found in processes:
        torch.testing.assert_close(found, balance(gather=False))


def test_labels_of_two_processes_keep_their_order_and_kind(processes):
    assert len(processes) == 2
    for _, (numbers, flags), _ in processes:
        assert numbers.tolist() == [0, 7, 1, 7]
        assert flags.tolist() == [True, True, False, True]
        assert flags.dtype == torch.bool


def test_alone_there_is_nothing_to_gather():
    features, labels = torch.rand(3, 2), torch.arange(3)
    assert gather_features(features) is features
    assert gather_labels(labels)[0] is labels
