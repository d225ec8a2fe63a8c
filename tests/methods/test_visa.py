"""ViSA as a method: its variants, its terms, Table 2, what it may see, and training in several processes."""

import itertools

import pytest
import torch
from processes import returned_by
from small_visa import batch, small_backbone, small_visa
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from agreid_plugin.errors import InputError
from agreid_plugin.losses import IdentityLoss, OrthogonalLoss, TripletLoss, ViewLoss, load_balance
from agreid_plugin.methods.visa import VARIANTS, ViSA, ViSABackbone
from agreid_plugin.nn.bnneck import BNNeck
from agreid_plugin.types import Batch, View

TABLE_2 = [row for row in itertools.product([False, True], repeat=3) if row[2] or not row[1]]  # (VAB, ETGM, DLFM)


# What a variant is


def test_the_variant_of_the_paper():
    backbone = small_backbone("paper")
    branches = [backbone.fusion.invariant, backbone.fusion.specific]
    assert backbone.encoder.view_tokens.shape == (3, 2, 16)  # of every block, of every view
    assert backbone.encoder.subtractions == 2  # after all blocks but the last
    assert all(branch.patches_per_query and branch.gradient for branch in branches)
    assert branches[0].graph is not branches[1].graph
    assert backbone.fusion.token is None
    assert not ViSA(backbone, 3, variant="paper").objectives["cls"].loss.over_nonzero


def test_the_released_variant():
    backbone = small_backbone("released")
    branches = [backbone.fusion.invariant, backbone.fusion.specific]
    assert backbone.encoder.view_tokens.shape == (1, 2, 16)
    assert backbone.encoder.subtractions == 2
    assert not any(branch.patches_per_query or branch.gradient for branch in branches)
    assert branches[0].graph is branches[1].graph
    assert backbone.fusion.token.shape == (16,)
    assert ViSA(backbone, 3, variant="released").objectives["cls"].loss.over_nonzero


# Terms and features


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_terms_of_equation_20_and_the_predictors_equal_their_losses(variant):
    method, data = small_visa(variant), batch()
    outputs = method(data)
    terms, features = method.losses(outputs, data), outputs.features
    read, aerial = VARIANTS[variant], data.views == View.AERIAL
    of_identity, encoded = IdentityLoss(over_nonzero=read.over_nonzero), features.encoded
    shared, by_view = features.queries.shared.probabilities, features.queries.by_view.probabilities
    balance = load_balance(shared) + load_balance(by_view[aerial]) * 2 / 6 + load_balance(by_view[~aerial]) * 4 / 6
    expected = {
        "loss_cls_id": of_identity(outputs.identity.logits, data.pids),
        "loss_triplet_id": TripletLoss()(encoded.identity, data.pids),
        "loss_cls_local": of_identity(outputs.local.logits, data.pids),
        "loss_triplet_local": TripletLoss()(features.local, data.pids),
        "loss_view": ViewLoss()(outputs.view.logits, data.views),
        "loss_orthogonal": OrthogonalLoss()(encoded.identity, encoded.view),
        "loss_view_predictor": ViewLoss()(outputs.predicted, data.views),
        "loss_balance": read.balance_weight * balance,
    }
    assert list(terms) == list(expected)
    for name, term in terms.items():
        torch.testing.assert_close(term, expected[name], msg=name)
    assert read.balance_weight == {"paper": 1e-3, "released": 1e-4}[variant]


def test_weights_of_the_terms():
    data = batch()
    plain, weighted = small_visa(balance_weight=1.0), small_visa(view_weight=0.25, balance_weight=0.5)
    ours, theirs = plain.losses(plain(data), data), weighted.losses(weighted(data), data)
    for name, factor in {"loss_view": 0.25, "loss_orthogonal": 0.25, "loss_balance": 0.5}.items():
        torch.testing.assert_close(theirs[name], factor * ours[name])
    assert torch.equal(theirs["loss_view_predictor"], ours["loss_view_predictor"])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("vab", "etgm", "dlfm"), TABLE_2)
def test_rows_of_table_2(variant, vab, etgm, dlfm):
    method, data = small_visa(variant, {"vab": vab, "etgm": etgm, "dlfm": dlfm}), batch()
    terms = method.losses(method(data), data)
    names = {"loss_cls_id", "loss_triplet_id"}
    names |= {"loss_cls_local", "loss_triplet_local"} if dlfm else set()
    names |= {"loss_view", "loss_orthogonal"} if vab else set()
    names |= {"loss_view_predictor"} if vab or etgm else set()
    names |= {"loss_balance"} if etgm else set()
    assert set(terms) == names
    sum(terms.values()).backward()
    for name, parameter in method.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
    method.eval()
    features = method.embed(method(data.only(method.inference_inputs)))
    assert features.shape == (6, 32 if dlfm else 16)
    assert method.inference_inputs == ({"images", "views"} if vab or etgm else {"images"})
    assert method.training_inputs == ({"images", "pids", "views"} if vab or etgm else {"images", "pids"})
    assert method.view_source == ("given" if vab or etgm else "")


@torch.no_grad()
def test_features_do_not_depend_on_labels():
    method, data = small_visa().eval(), batch()
    features = method.embed(method(data))
    for other in (data.with_(pids=data.pids.flip(0)), data.only(method.inference_inputs)):
        assert torch.equal(method.embed(method(other)), features)


@torch.no_grad()
def test_features_are_identity_and_local_behind_their_norms():
    method, data = small_visa().eval(), batch()
    made = method.backbone(data.images, data.views)
    expected = torch.cat([method.head.norm(made.encoded.identity), method.local_head.norm(made.local)], dim=1)
    assert torch.equal(method.embed(method(data)), expected)


@pytest.mark.parametrize(("variant", "tracked"), [("released", 2), ("paper", 1)])
def test_what_the_norm_keeps(variant, tracked):
    method, data = small_visa(variant), batch()
    encoded = method(data).features.encoded
    mean = 0.1 * encoded.identity.mean(dim=0)
    mean = 0.9 * mean + 0.1 * encoded.cls.mean(dim=0) if tracked == 2 else mean
    torch.testing.assert_close(method.head.norm.running_mean, mean)
    counts = [head.norm.num_batches_tracked.item() for head in (method.head, method.local_head, method.view_head)]
    assert counts == [tracked, 1, 1]


def test_heads_and_losses_of_ones_own():
    made = []

    def make_head(width: int, classes: int) -> BNNeck:
        made.append(classes)
        return BNNeck(width, classes)

    method, data = small_visa(make_head=make_head, objectives=nn.ModuleDict()), batch()
    assert made == [3, 3, 2]
    assert set(method.losses(method(data), data)) == {
        "loss_view",
        "loss_orthogonal",
        "loss_view_predictor",
        "loss_balance",
    }


@torch.no_grad()
def test_an_image_alone_has_the_features_it_has_in_company():
    method, data = small_visa().eval(), batch()
    alone = Batch(images=data.images[2:3], views=data.views[2:3])
    torch.testing.assert_close(method.embed(method(alone)), method.embed(method(data))[2:3], rtol=1e-4, atol=1e-5)


# Bad arguments


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"neighbors": 9}, "neighbors=9 .* 8"),
        ({"neighbors": 0}, "neighbors=0"),
        ({"top_k": 4}, "top_k=4 .* 3"),
        ({"tokens": 0}, "tokens=0"),
        ({"tokens": 0, "etgm": False}, "tokens=0"),
        ({"variant": "relased"}, "variant 'relased' unknown .*released"),
        ({"dlfm": False}, "etgm=True needs dlfm=True"),
    ],
)
def test_bad_arguments_of_the_backbone_are_named(arguments, words):
    with pytest.raises(InputError, match=words) as error:
        small_backbone(**arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"view": "guessed"}, "view 'guessed' unknown; known: given, predicted"),
        ({"variant": "papre"}, "variant 'papre'"),
    ],
)
def test_bad_arguments_of_the_method_are_named(arguments, words):
    with pytest.raises(InputError, match=words):
        ViSA(small_backbone(), 3, **arguments)


def test_queries_without_their_fusion_are_refused():
    backbone = small_backbone()
    with pytest.raises(InputError, match="come together"):
        ViSABackbone(backbone.encoder, backbone.queries, None)


# Half precision and several processes


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_step_inside_autocast(variant):
    method, data = small_visa(variant), batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        terms = method.losses(method(data), data)
    sum(terms.values()).backward()
    for name, parameter in method.named_parameters():
        assert not parameter.requires_grad or parameter.grad.isfinite().all(), name


class LossesOf(nn.Module):
    """What DDP wraps: a method from batch to total loss."""

    def __init__(self, method: ViSA):
        super().__init__()
        self.method = method

    def forward(self, data: Batch) -> Tensor:
        return sum(self.method.losses(self.method(data), data).values())


def train_two_steps(rank: int) -> dict[str, dict[str, Tensor]]:
    """One of two processes: the first has aerial images alone, the second ground ones."""
    trained = {}
    for variant in VARIANTS:
        model = DistributedDataParallel(LossesOf(small_visa(variant)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(2):
            optimizer.zero_grad()
            model(batch(seed=10 * rank + step).with_(views=torch.full((6,), rank))).backward()
            optimizer.step()
        trained[variant] = dict(model.module.method.named_parameters())
    return trained


def test_two_processes_of_one_view_each_agree(tmp_path):
    trained = returned_by(2, train_two_steps, tmp_path)
    for variant in VARIANTS:
        start = dict(small_visa(variant).named_parameters())
        first, second = (theirs[variant] for theirs in trained)
        for name, parameter in first.items():
            assert torch.equal(parameter, second[name]), name
        moved = first["backbone.encoder.view_tokens"] - start["backbone.encoder.view_tokens"]
        assert moved.flatten(2).any(dim=2).all()  # both views learned
