"""The attributes of SVPR-ReID: named in training, unknown, missing, and predicted."""

import pytest
import torch
import torch.nn.functional as F
from small_svpr import SCHEMA, VARIANTS, batch, features, small_svpr, step, without_dropout

from agreid_plugin.data.attributes import AttributeSchema
from agreid_plugin.errors import InputError
from agreid_plugin.types import UNKNOWN


@pytest.mark.parametrize("variant", VARIANTS)
def test_in_training_sentences_name_the_attributes(variant):
    method, data = without_dropout(small_svpr(variant)), batch()
    named = method(data).features.attributes.tokens
    others = data.with_(attributes=torch.tensor([[1, 0, 0]]).expand(6, -1))
    assert not torch.isclose(named, method(others).features.attributes.tokens).flatten(1).all(dim=1).any()


def test_some_training_sentences_name_nothing():
    data, torch_seed = batch(), 0
    nothing = data.with_(attributes=torch.full_like(data.attributes, UNKNOWN))
    methods = {share: without_dropout(small_svpr(drop_attributes=share)) for share in (0.0, 0.5, 1.0)}
    torch.manual_seed(torch_seed)
    tokens = {share: method(data).features.attributes.tokens for share, method in methods.items()}
    silent = methods[0.0](nothing).features.attributes.tokens
    assert torch.equal(tokens[1.0], silent)
    torch.manual_seed(torch_seed)
    hidden = (torch.rand(6, 1) < 0.5).flatten()
    assert 0 < hidden.sum() < 6
    assert torch.allclose(tokens[0.5][hidden], silent[hidden], atol=1e-6)
    assert torch.allclose(tokens[0.5][~hidden], tokens[0.0][~hidden], atol=1e-6)
    losses = methods[1.0].losses(methods[1.0](data), data)
    assert losses["loss_attributes"] > 0  # attributes that are not named are learned as well


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("schema", [None, AttributeSchema({})])
def test_a_dataset_without_attributes(variant, schema):
    method, data = small_svpr(variant, schema), batch().with_(attributes=None)
    assert method.backbone.asmoe is None
    assert "loss_attributes" not in step(method, data)
    assert features(method.eval(), data).shape == (6, 48)
    with pytest.raises(InputError, match="the model has no attributes"):
        method.predict_attributes(method(data))


@pytest.mark.parametrize("variant", VARIANTS)
def test_attributes_that_nobody_knows(variant):
    method, data = small_svpr(variant), batch()
    data = data.with_(attributes=torch.full_like(data.attributes, UNKNOWN))
    terms = step(method, data)
    assert terms["loss_attributes"].item() == 0
    for name, parameter in method.named_parameters():
        assert not parameter.requires_grad or parameter.grad.isfinite().all(), name


def test_an_unknown_attribute_is_neither_named_nor_learned():
    method, data = without_dropout(small_svpr()), batch()
    outputs = method(data)
    known = data.attributes[:, 1] != UNKNOWN
    logits = outputs.features.attributes.logits
    terms = [
        F.cross_entropy(logits[0][[0, 1, 2, 3, 5]], data.attributes[[0, 1, 2, 3, 5], 0]),
        F.cross_entropy(logits[1][known], data.attributes[known, 1]),
        F.cross_entropy(logits[2][[0, 1, 2, 3, 5]], data.attributes[[0, 1, 2, 3, 5], 2]),
    ]
    torch.testing.assert_close(method.losses(outputs, data)["loss_attributes"], 0.1 * sum(terms))
    assert "A photo of a X X X X person with attributes: hair is short, hat is yes." in method.backbone.text.tokens


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        (None, "attributes=None, but SVPR-ReID learns from attributes; asmoe=False needs none"),
        (torch.zeros(6, 2, dtype=torch.long), r"attributes=\(6, 2\) should be images by attributes, \(6, 3\)"),
        (torch.full((6, 3), 2), "attributes has 2 for 'hair', which has 2 values"),
        (torch.full((6, 3), -2), "attributes has -2 for 'hair', which has 2 values"),
    ],
)
def test_attributes_that_are_not_there(attributes, message):
    with pytest.raises(InputError, match=message):
        small_svpr()(batch().with_(attributes=attributes))


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_attributes_are_predicted(variant):
    method, data = small_svpr(variant).eval(), batch()
    outputs = method(data.only(method.inference_inputs))
    found = method.predict_attributes(outputs)
    assert len(found) == 6
    for image, guesses in enumerate(found):
        assert [guess.name for guess in guesses] == ["hair", "bag", "hat"]
        for guess, logits in zip(guesses, outputs.features.attributes.logits, strict=True):
            probabilities = logits[image].softmax(dim=0)
            assert guess.confidence == pytest.approx(probabilities.max().item())
            assert guess.value == SCHEMA.groups[guess.name][probabilities.argmax()]
