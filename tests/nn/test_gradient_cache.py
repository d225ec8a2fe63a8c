"""Gradients of a whole batch from chunks of it."""

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from processes import returned_by
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import set_checkpoint_early_stop

from agreid_plugin.errors import InputError
from agreid_plugin.methods.tag_clip import TAGCLIP
from agreid_plugin.nn.clip import EOT, SOT
from agreid_plugin.nn.clip_build import build_clip
from agreid_plugin.nn.gradient_cache import TwoStageMethod, _copy_slice, encode_in_chunks
from agreid_plugin.types import Batch

SHAPE = {"patch_size": 8, "width": 8, "heads": 2, "layers": 3, "embed_dim": 6}
TEXT = {"text_width": 8, "text_heads": 2, "text_layers": 2, "text_length": 7}
NOTHING_RANDOM = {"sample": "argmax", "noise": 0.0, "text_dropout": 0.0}
ROWS = {
    "HR-MoE": {},
    "HR-MoE, tokens choose": {"top_k": 2},
    "no TSE": {"tse": False},
    "ViT": {"block": "vit", "view_loss": False, "ortho_loss": False, "objective": "sdm"},
}
PAIRS = 8


class Recorded(TAGCLIP):
    """TAG-CLIP that remembers what it was given to encode, and what it made of that."""

    def encode(self, batch: Batch) -> Any:
        self.given = [*getattr(self, "given", []), batch]
        encoded = super().encode(batch)
        self.made = [*getattr(self, "made", []), encoded]
        return encoded


def tag_clip(dtype: torch.dtype = torch.float64, **arguments) -> Recorded:
    torch.manual_seed(0)
    clip = build_clip("ViT-B-16", image_size=(32, 16), **SHAPE, **TEXT)
    model = Recorded(clip, 4, **{"at": (1, 2), "experts": 4, "top_k": 3, "tse_width": 5, **arguments})
    for name, parameter in model.named_parameters():
        if "router" in name or ".experts." in name:
            parameter.data += 0.3 * torch.randn(parameter.shape)
    return model.to(dtype)


def pairs(dtype: torch.dtype = torch.float64, unknown: bool = True) -> Batch:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(PAIRS, 3, 32, 16, generator=generator, dtype=dtype)
    tokens = torch.zeros(PAIRS, 7, dtype=torch.long)
    for number, row in enumerate(tokens):
        words = torch.randint(1, SOT, (1 + number % 5,), generator=generator).tolist()
        row[: len(words) + 2] = torch.tensor([SOT, *words, EOT])
    views = torch.tensor([0, 1, -1 if unknown else 1, 0, 1, 1, 0, 0])
    return Batch(images=images, tokens=tokens, pids=torch.tensor([0, 0, 1, 2, 3, 2, 3, 1]), views=views)


def learned(model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor | None]]:
    """Take losses and gradients; a wrapper for many processes may hold the method."""
    model.zero_grad()
    terms = getattr(model, "module", model).losses(model(batch), batch)
    sum(terms.values()).backward()
    detached = {name: value.detach() for name, value in terms.items()}
    return detached, {name: parameter.grad for name, parameter in model.named_parameters()}


def assert_same(found: dict[str, Tensor | None], expected: dict[str, Tensor | None], **tolerance: float) -> None:
    assert {name for name, value in found.items() if value is None} == {
        name for name, value in expected.items() if value is None
    }
    for name, value in found.items():
        if value is not None:
            torch.testing.assert_close(
                value, expected[name], msg=lambda text, name=name: f"{name}: {text}", **tolerance
            )


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 8, 9])
def test_losses_and_gradients_are_those_of_the_whole_batch(chunk, row):
    plain, chunked = (tag_clip(**NOTHING_RANDOM, **ROWS[row]) for _ in range(2))
    chunked.chunk = chunk
    expected, found = learned(plain, pairs()), learned(chunked, pairs())
    assert_same(found[0], expected[0], rtol=1e-9, atol=1e-12)
    assert_same(found[1], expected[1], rtol=1e-9, atol=1e-12)
    assert sum(value.abs().sum() > 0 for value in found[1].values()) > 20
    assert_same(dict(chunked.named_buffers()), dict(plain.named_buffers()), rtol=1e-9, atol=1e-12)  # of batch norms


def test_each_chunk_is_encoded_twice_and_for_gradients_alone():
    model = tag_clip()
    model.chunk = 3
    learned(model, pairs())
    starts = [next(n for n in range(PAIRS) if pairs().images[n].equal(piece.images[0])) for piece in model.given]
    assert starts == [0, 3, 6, 6, 3, 0]  # backward from the last one, one after another
    assert [len(piece.tokens) for piece in model.given] == [3, 3, 2, 2, 3, 3]
    model.given = []
    with torch.no_grad():
        model(pairs())
    assert [len(piece) for piece in model.given] == [PAIRS]


def test_the_second_time_draws_what_the_first_did():
    """Views, noise of routers, and dropout: nothing is the same without the generator's state."""
    model = tag_clip(text_dropout=0.5, noise=0.5)
    model.chunk = 3
    with set_checkpoint_early_stop(False):  # to see the end of the second encoding, too
        terms = model.losses(model(pairs()), pairs())
        sum(terms.values()).backward()
    first, second = model.made[:3], model.made[3:][::-1]
    for before, after in zip(first, second, strict=True):
        assert after.images.tokens.equal(before.images.tokens)
        assert after.texts.tokens.equal(before.texts.tokens)
        for ours, theirs in zip(after.images.routed, before.images.routed, strict=True):
            assert ours.weights.equal(theirs.weights)
    assert not model.encode(model.given[0]).texts.tokens.equal(first[0].texts.tokens)


def test_what_is_drawn_after_a_step_does_not_depend_on_encoding_again():
    model = tag_clip()
    model.chunk = 3
    terms = model.losses(model(pairs()), pairs())
    state = torch.get_rng_state()
    sum(terms.values()).backward()
    assert torch.get_rng_state().equal(state)


def test_random_draws_have_the_gradients_of_chunks_whose_graph_was_kept():
    gradients = []
    for kept in (False, True):
        model, data = tag_clip(text_dropout=0.5, noise=0.5), pairs()
        torch.manual_seed(3)
        if kept:
            cuts = [data.with_(**{name: value[at] for name, value in data.present().items()}) for at in CUTS]
            encoded = joined([model.encode(cut) for cut in cuts])
        else:
            encoded = encode_in_chunks(model, data, 3)
        sum(model.losses(model.finish(encoded, data), data).values()).backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    assert_same(*gradients, rtol=1e-9, atol=1e-12)


CUTS = (slice(0, 3), slice(3, 6), slice(6, 8))


def joined(parts: list) -> Any:
    """Join by name, field by field."""

    def tower(each: list) -> Any:
        fields = {name: torch.cat([getattr(one, name) for one in each]) for name in ("tokens", "attention")}
        return type(each[0])(
            **fields, routed=tuple(routed(blocks) for blocks in zip(*(one.routed for one in each), strict=True))
        )

    def routed(each: tuple) -> Any:
        names = ("weights", "cls", "view", "logits", "views")
        return type(each[0])(**{name: torch.cat([getattr(one, name) for one in each]) for name in names})

    return type(parts[0])(tower([part.images for part in parts]), tower([part.texts for part in parts]))


def test_half_precision_differs_by_its_rounding():
    arguments = {**NOTHING_RANDOM, "top_k": 3, "temperature": 0.5, "at": (1,)}
    exact = learned(tag_clip(torch.float32, **arguments), pairs(torch.float32))[1]
    errors = []
    for chunk in (0, 3):
        model = tag_clip(torch.float32, **arguments)
        model.chunk = chunk
        with torch.autocast("cpu", torch.bfloat16):
            terms = model.losses(model(pairs(torch.float32)), pairs(torch.float32))
        sum(terms.values()).backward()
        found = {name: parameter.grad for name, parameter in model.named_parameters()}
        assert all(value.dtype == torch.float32 for value in found.values())
        errors.append(sum((found[name] - exact[name]).norm() for name in exact) / sum(v.norm() for v in exact.values()))
    assert 0 < errors[0] < 0.2
    assert 0 < errors[1] < 1.5 * errors[0]


class Counting(TwoStageMethod):
    """One weight, whose gradient is the number of images."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False)

    def encode(self, batch: Batch) -> Tensor:
        return self.layer(batch.images)

    def finish(self, encoded: Tensor, batch: Batch) -> Tensor:
        return encoded.float()

    def losses(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {"loss_sum": outputs.sum()}

    def embed(self, outputs: Tensor) -> Tensor:
        return outputs


def test_chunks_add_up_in_full_precision():
    """In bfloat16 256 + 1 is 256."""
    model, data = Counting(), Batch(images=torch.ones(300, 1))
    model.chunk = 1
    with torch.autocast("cpu", torch.bfloat16):
        total = model.losses(model(data), data)["loss_sum"]
    total.backward()
    assert model.layer.weight.grad.item() == 300


# Methods of other shapes


Named = namedtuple("Named", ["kept", "also"])


@dataclass(frozen=True)
class Parts:
    by_name: dict[str, Tensor]
    named: Named
    listed: list[Tensor | None]
    told: str


class Small(TwoStageMethod):
    """Linear layers in all kinds of containers, a dropout, a batch norm at the end, and weights that learn nothing."""

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3)])
        self.unread, self.unused, self.frozen = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.drop, self.norm, self.scale = nn.Dropout(dropout), nn.BatchNorm1d(3), nn.Parameter(torch.tensor(2.0))

    def encode(self, batch: Batch) -> Parts:
        values = self.drop(self.frozen(batch.images))
        first, second, third = (layer(values) for layer in self.layers)
        numbers = batch.pids.float()
        return Parts({"a": first}, Named(second, batch.pids), [third, None, self.unread(values), numbers], "told")

    def finish(self, encoded: Parts, batch: Batch) -> Tensor:
        assert encoded.named.also.equal(batch.pids)
        assert encoded.listed[1] is None
        assert encoded.told == "told"
        return self.scale * self.norm(encoded.by_name["a"] + encoded.named.kept * encoded.listed[0])

    def losses(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        similarity = outputs @ outputs.T
        return {"loss_pairs": nn.functional.cross_entropy(similarity, batch.pids)}

    def embed(self, outputs: Tensor) -> Tensor:
        return outputs


def vectors() -> Batch:
    images = torch.randn(7, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return Batch(images=images, pids=torch.tensor([0, 1, 2, 3, 0, 1, 2]), paths=tuple("abcdefg"))


@pytest.mark.parametrize("chunk", [1, 2, 3, 6, 7])
def test_any_containers_and_weights_that_learn_nothing(chunk):
    plain, chunked = Small().double(), Small().double()
    chunked.chunk = chunk
    expected, found = learned(plain, vectors())[1], learned(chunked, vectors())[1]
    assert_same(found, expected, rtol=1e-9, atol=1e-12)
    assert {name.split(".")[0] for name, value in found.items() if value is None} == {"unread", "unused", "frozen"}


def test_gradients_by_finite_differences():
    model, weight = Small().double(), Small().layers[1].weight.detach().double().requires_grad_()
    model.chunk = 2

    def loss(weight: Tensor) -> Tensor:
        outputs = torch.func.functional_call(model, {"layers.1.weight": weight}, (vectors(),))
        return model.losses(outputs, vectors())["loss_pairs"]

    model.norm.momentum = 0.0
    slopes = torch.zeros_like(weight)
    for place in range(weight.numel()):
        step = torch.zeros(weight.numel(), dtype=torch.float64)
        step[place] = 1e-6
        step = step.view_as(weight)
        slopes.view(-1)[place] = (loss(weight.detach() + step) - loss(weight.detach() - step)) / 2e-6
    with torch.no_grad():
        model.layers[1].weight.copy_(weight)
    found = learned(model, vectors())[1]["layers.1.weight"]
    torch.testing.assert_close(found, slopes, rtol=1e-6, atol=1e-8)


def test_what_keeps_something_larger_in_memory_is_copied():
    tokens = torch.randn(4, 9, 3)
    assert _copy_slice(tokens) is tokens
    assert _copy_slice(tokens[:, 0]).untyped_storage().nbytes() == 4 * 3 * 4
    assert _copy_slice(tokens[:, 0]).equal(tokens[:, 0])


# What is refused


class Normed(Small):
    """With a batch norm among what is run in chunks."""

    def encode(self, batch: Batch) -> Parts:
        return super().encode(
            batch.with_(images=torch.cat([self.norm(batch.images[:, :3]), batch.images[:, 3:]], dim=1))
        )


def test_a_batch_norm_in_a_chunk_is_refused_unless_its_statistics_are_fixed():
    model = Normed().double()
    model.chunk = 3
    with pytest.raises(InputError, match=r"^Normed\.encode runs the batch norm norm on chunks of 3 of 7 [^\n]*$"):
        model(vectors())
    assert model.norm.num_batches_tracked == 0
    model.eval()
    model(vectors())
    model.chunk = 0
    model.train()
    model(vectors())


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda batch: batch.images.sum(), r"^encode=\(\) of a chunk should have its 3 images first$"),
        (
            lambda batch: {"a": [batch.images.T]},
            r"^encode\['a'\]\[0\]=\(4, 3\) of a chunk should have its 3 images first$",
        ),
        (
            lambda batch: batch.images.expand(len(batch), len(batch), 4),
            r"^encode is \(3, 3, 4\) of one chunk and \(1, 1, 4\) of another: [^\n]*$",
        ),
        (lambda batch: (len(batch), None), r"^encode\[0\] is not the same in all chunks: [^\n]*$"),
        (lambda batch: batch.images if len(batch) == 3 else None, r"^encode is not the same in all chunks: [^\n]*$"),
    ],
)
def test_what_cannot_be_joined_is_named(made, message):
    model = Small().double()
    model.encode = made
    with pytest.raises(InputError, match=message):
        encode_in_chunks(model, vectors(), 3)


def test_bad_chunks_and_batches_are_named():
    with pytest.raises(InputError, match=r"^chunk=-2 should be 1 or more$"):
        encode_in_chunks(Small(), vectors(), -2)
    with pytest.raises(InputError, match=r"^a batch of \{'images': 7, 'pids': 2, 'paths': 7\} cannot be cut [^\n]*$"):
        encode_in_chunks(Small(), vectors().with_(pids=torch.arange(2)), 3)


# Processes


def spread(chunk: int, gather: bool) -> TAGCLIP:
    """Without TSE, whose batch norms have the statistics of a process."""
    model = tag_clip(**NOTHING_RANDOM, tse=False, gather=gather)
    model.chunk = chunk
    return model


def train_one_step(rank: int) -> tuple:
    """One of two processes: its half of the pairs, in chunks of 3, gathered, and the averaged gradients."""
    model = DistributedDataParallel(spread(3, gather=True))
    data = pairs(unknown=False)
    half = data.with_(**{name: value[4 * rank : 4 * rank + 4] for name, value in data.present().items()})
    return [learned(model, half) for _ in range(2)][1]  # a second step finds the wrapper as the first did


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    return returned_by(2, train_one_step, tmp_path_factory.mktemp("processes"))


def test_two_processes_with_chunks_have_the_gradients_of_one_without(processes):
    terms, gradients = learned(spread(0, gather=False), pairs(unknown=False))
    for found, theirs in processes:
        assert_same(
            {name.removeprefix("module."): value for name, value in theirs.items()}, gradients, rtol=1e-9, atol=1e-12
        )
        for name in ("loss_nitc", "loss_ritc"):
            torch.testing.assert_close(found[name], terms[name], rtol=1e-9, atol=1e-12)
    for name in ("loss_id", "loss_view", "loss_orthogonal"):  # each process has those of its own images
        mean = (processes[0][0][name] + processes[1][0][name]) / 2
        torch.testing.assert_close(mean, terms[name], rtol=1e-9, atol=1e-12)
