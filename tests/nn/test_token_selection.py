from functools import partial

import pytest
import torch
import torch.nn.functional as F
from draws import draw
from torch import Tensor

from agreid_plugin.errors import InputError
from agreid_plugin.nn.token_selection import TokenSelection, mask_patches, mask_words, select_strongest

WIDTH, OUT = 4, 6
drawn = partial(draw, seed=1)


def selection(candidates: int = 10, share: float = 0.3, **arguments) -> TokenSelection:
    torch.manual_seed(0)
    made = TokenSelection(WIDTH, candidates, share, OUT, **arguments).double()
    torch.nn.init.normal_(made.norm.weight)
    torch.nn.init.normal_(made.norm.running_mean)
    return made


def slow_feature(made: TokenSelection, tokens: list[Tensor]) -> Tensor:
    """One feature from the selected tokens of one image, token by token, with the running statistics."""
    embedded = []
    for token in tokens:
        scaled = token / token.norm()
        hidden = made.fc1(scaled)
        norm = made.norm
        hidden = (hidden - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias
        embedded.append(made.linear(scaled) + made.fc2(hidden.clamp(min=0)))
    return torch.stack(embedded).max(dim=0).values


# Which tokens


@pytest.mark.parametrize(
    ("candidates", "share", "most"), [(196, 0.3, 58), (192, 0.3, 57), (75, 0.3, 22), (2, 0.3, 1), (8, 1, 8)]
)
def test_how_many_are_selected(candidates, share, most):
    assert TokenSelection(WIDTH, candidates, share, OUT).most == most


def test_the_most_attended_are_selected_in_their_order():
    attention = torch.tensor([[0.9, 0.1, 0.3, 0.2], [0.0, 0.3, 0.1, 0.2]])
    indices, real = select_strongest(attention, mask_patches(torch.zeros(2, 4, 1)), 2)
    assert indices.tolist() == [[2, 3], [1, 3]]
    assert real.all()


def test_cls_is_not_allowed():
    assert mask_patches(torch.zeros(2, 3, 1)).tolist() == [[False, True, True]] * 2


def test_words_are_between_start_and_end():
    allowed = mask_words(torch.tensor([4, 2, 3]), 5)
    assert allowed.tolist() == [
        [False, True, True, True, False],
        [False, True, False, False, False],
        [False, True, True, False, False],
    ]


def test_a_sentence_without_words_has_its_end():
    assert mask_words(torch.tensor([1]), 4).tolist() == [[False, True, False, False]]


@pytest.mark.parametrize("seed", range(3))
def test_start_end_and_padding_are_never_selected(seed):
    """However much attention they have."""
    ends = torch.tensor([2, 5, 9])
    attention = drawn(3, 10, seed=seed).softmax(dim=1)
    attention[:, 0] += 1
    attention[torch.arange(3), ends] += 1
    indices, real = select_strongest(attention, mask_words(ends, 10), 4)
    assert real.sum(dim=1).tolist() == [1, 4, 4]
    for row, keep, end in zip(indices, real, ends.tolist(), strict=True):
        assert all(0 < place < end for place in row[keep].tolist())


def test_fewer_tokens_than_are_to_be_selected():
    indices, real = select_strongest(torch.rand(1, 3), mask_words(torch.tensor([2]), 3), 22)
    assert indices.shape == real.shape == (1, 3)
    assert real.tolist() == [[True, False, False]]


# The feature


def test_feature_equals_the_slow_loop():
    made, tokens, attention = selection().eval(), drawn(2, 11, WIDTH), drawn(2, 11, seed=2)
    found = made(tokens, attention, mask_patches(tokens))
    for image in range(2):
        order = sorted(range(1, 11), key=lambda place: -attention[image, place])
        expected = slow_feature(made, [tokens[image, place] for place in order[:3]])
        torch.testing.assert_close(found.features[image], expected)
        assert found.indices[image].tolist() == order[:3]


def test_a_short_sentence_is_pooled_over_its_words_alone():
    made, tokens, attention = selection().eval(), drawn(2, 11, WIDTH), drawn(2, 11, seed=2)
    found = made(tokens, attention, mask_words(torch.tensor([2, 3]), 11))
    torch.testing.assert_close(found.features[0], slow_feature(made, [tokens[0, 1]]))
    torch.testing.assert_close(found.features[1], slow_feature(made, [tokens[1, 1], tokens[1, 2]]))


def test_the_length_of_tokens_does_not_matter():
    made, tokens, attention = selection().eval(), drawn(2, 11, WIDTH), drawn(2, 11, seed=2)
    allowed = mask_patches(tokens)
    torch.testing.assert_close(made(7 * tokens, attention, allowed).features, made(tokens, attention, allowed).features)


@pytest.mark.parametrize("training", [True, False])
def test_sentences_without_words_are_finite(training):
    made = selection().train(training)
    tokens = drawn(3, 11, WIDTH).requires_grad_()
    found = made(tokens, drawn(3, 11, seed=2), mask_words(torch.tensor([1, 1, 1]), 11))
    F.normalize(found.features).sum().backward()
    assert found.features.isfinite().all()
    assert tokens.grad.isfinite().all()
    assert found.indices[:, 0].tolist() == [1, 1, 1]


def test_statistics_are_of_real_tokens_alone():
    made, tokens, attention = selection().train(), drawn(2, 11, WIDTH), drawn(2, 11, seed=2)
    made.norm.momentum = 1.0
    made(tokens, attention, mask_words(torch.tensor([2, 3]), 11))
    words = F.normalize(torch.stack([tokens[0, 1], tokens[1, 1], tokens[1, 2]]), dim=1)
    torch.testing.assert_close(made.norm.running_mean, made.fc1(words).mean(dim=0))
    torch.testing.assert_close(made.norm.running_var, made.fc1(words).var(dim=0))


def test_padding_changes_nothing_in_training():
    tokens, attention = drawn(2, 11, WIDTH), drawn(2, 11, seed=2)
    allowed = mask_words(torch.tensor([2, 3]), 11)
    other = tokens.where(allowed.unsqueeze(-1), drawn(2, 11, WIDTH, seed=3))
    found = [selection().train()(values, attention, allowed).features for values in (tokens, other)]
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


@pytest.mark.parametrize("training", [True, False])
def test_gradients(training):
    made = selection().train(training)
    tokens, attention = drawn(2, 11, WIDTH).requires_grad_(), drawn(2, 11, seed=2)
    allowed = mask_words(torch.tensor([3, 10]), 11)
    inputs = (tokens, *made.parameters())
    assert torch.autograd.gradcheck(lambda *_: made(tokens, attention, allowed).features, inputs)


def test_every_parameter_has_a_gradient():
    made, tokens = selection().train(), drawn(3, 11, WIDTH)
    made(tokens, drawn(3, 11, seed=2), mask_patches(tokens)).features.sum().backward()
    assert all(parameter.grad is not None for parameter in made.parameters())


def test_half_precision_gives_a_float():
    made = TokenSelection(WIDTH, 10, 0.3, OUT)
    tokens = drawn(3, 11, WIDTH).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = made(tokens, drawn(3, 11, seed=2), mask_patches(tokens))
    assert found.features.dtype == torch.float32
    assert found.features.isfinite().all()


def test_bad_input_is_refused():
    with pytest.raises(InputError, match=r"share=1\.5 should be between 0 and 1"):
        TokenSelection(WIDTH, 10, 1.5)
    with pytest.raises(InputError, match="candidates=0 should be 1 or more"):
        TokenSelection(WIDTH, 0)
    with pytest.raises(InputError, match=r"attention=\(1, 3\) should have the shape of allowed: \(1, 4\)"):
        select_strongest(torch.rand(1, 3), torch.ones(1, 4, dtype=torch.bool), 1)
