import math

import torch

from agreid_plugin.nn.bnneck import BNNeck

FEATURES = torch.tensor([[1.0, 4.0], [3.0, 0.0]])


def test_training_by_hand():
    # Means 2 and 2, standard deviations 1 and 2: (-1, 1) and (1, -1). The classifier adds and subtracts.
    neck = BNNeck(2, 2)
    with torch.no_grad():
        neck.classifier.weight.copy_(torch.tensor([[1.0, 1.0], [2.0, -1.0]]))
    outputs = neck(FEATURES, torch.tensor([0, 1]))
    assert outputs.features is FEATURES
    torch.testing.assert_close(outputs.embedding, torch.tensor([[-1.0, 1.0], [1.0, -1.0]]), rtol=0, atol=1e-4)
    torch.testing.assert_close(outputs.logits, torch.tensor([[0.0, -3.0], [0.0, 3.0]]), rtol=0, atol=1e-4)
    # A tenth of the way from mean 0 and variance 1 to 2 and, unbiased, 2 and 8.
    torch.testing.assert_close(neck.norm.running_mean, torch.tensor([0.2, 0.2]))
    torch.testing.assert_close(neck.norm.running_var, torch.tensor([1.1, 1.7]))


def test_evaluation_by_hand():
    neck = BNNeck(2, 3).eval()
    neck.norm.running_mean.fill_(1.0)
    neck.norm.running_var.fill_(4.0)
    outputs = neck(FEATURES)
    torch.testing.assert_close(outputs.embedding, torch.tensor([[0.0, 1.5], [1.0, -0.5]]))
    assert outputs.logits is None


def test_neither_the_norm_nor_the_classifier_learns_a_shift():
    neck = BNNeck(4, 3)
    learned = {name for name, parameter in neck.named_parameters() if parameter.requires_grad}
    assert learned == {"norm.weight", "classifier.weight"}
    assert not neck.norm.bias.any()
    assert neck.classifier.weight.shape == (3, 4)


def test_the_classifier_starts_small():
    torch.manual_seed(0)
    assert math.isclose(BNNeck(256, 100).classifier.weight.std().item(), 0.01, rel_tol=0.02)


def test_labels_change_nothing():
    neck = BNNeck(2, 5)
    assert torch.equal(neck(FEATURES, torch.tensor([0, 4])).logits, neck(FEATURES).logits)
