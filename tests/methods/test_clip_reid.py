import math

import pytest
import torch
from torch import nn

from agreid_plugin.errors import InputError
from agreid_plugin.losses import FeatureLoss, IdentityLoss, LogitLoss, TripletLoss
from agreid_plugin.methods.clip_reid import CLIPBaseline, CLIPReID, PromptSchedule, learn_prompts
from agreid_plugin.nn.clip import CLIP
from agreid_plugin.nn.clip_build import build_clip
from agreid_plugin.types import Batch, HeadOutputs

TINY = {"width": 16, "layers": 3, "heads": 2, "patch_size": 8, "embed_dim": 12}
TINY |= {"text_width": 8, "text_layers": 2, "text_heads": 2}
PIDS = torch.tensor([0, 0, 1, 1, 2, 2])


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(6, 3, 32, 16, generator=torch.Generator().manual_seed(1))


def towers() -> CLIP:
    torch.manual_seed(0)
    return build_clip(image_size=(32, 16), **TINY)


def baseline(**arguments) -> CLIPBaseline:
    return CLIPBaseline(towers().image, 3, **arguments)


def clip_reid(texts: bool = True, **arguments) -> CLIPReID:
    """Of three identities, with the texts of its first prompts or with none."""
    clip = towers()
    method = CLIPReID(clip.image, clip.text, 3, **arguments)
    method.prompts.mul_(50)  # far enough apart to tell
    if texts:
        method.keep_texts()
    return method


def batch(images) -> Batch:
    return Batch(images=images, pids=PIDS)


def smoothed(logits: torch.Tensor, share: float = 0.1) -> float:
    """Cross-entropy to 1 - share of the true identity and share / C of each, image by image."""
    total = 0.0
    for row, true in zip(logits.log_softmax(dim=1).tolist(), PIDS.tolist(), strict=True):
        total -= (1 - share) * row[true] + share * sum(row) / len(row)
    return total / len(logits)


def triplets(features: torch.Tensor, margin: float) -> float:
    """Batch-hard triplets, image by image; a margin of 0 is the soft one."""
    total, apart = 0.0, torch.cdist(features, features).tolist()
    for mine, row in zip(PIDS.tolist(), apart, strict=True):
        farthest = max(value for value, pid in zip(row, PIDS.tolist(), strict=True) if pid == mine)
        nearest = min(value for value, pid in zip(row, PIDS.tolist(), strict=True) if pid != mine)
        gap = farthest - nearest
        total += max(gap + margin, 0.0) if margin else math.log1p(math.exp(gap))
    return total / len(features)


def test_the_baselines_terms_by_hand(images):
    method, data = baseline(), batch(images)
    outputs = method(data)
    terms = method.losses(outputs, data)
    assert list(terms) == ["loss_cls_id", "loss_triplet_id"]
    assert terms["loss_cls_id"].item() == pytest.approx(0.25 * smoothed(outputs.identity.logits), rel=1e-5)
    assert terms["loss_triplet_id"].item() == pytest.approx(triplets(outputs.identity.features, 0.0), rel=1e-4)


def test_clip_reids_terms_by_hand(images):
    method, data = clip_reid(), batch(images)
    outputs = method(data)
    terms = method.losses(outputs, data)
    identity, projected, before = (head.features for head in (outputs.identity, outputs.projected, outputs.before))
    expected = {
        "loss_cls_id": 0.25 * smoothed(outputs.identity.logits),
        "loss_cls_projected": 0.25 * smoothed(outputs.projected.logits),
        "loss_triplet_id": triplets(identity, 0.3),
        "loss_triplet_projected": triplets(projected, 0.3),
        "loss_triplet_before": triplets(before, 0.3),
        "loss_i2t": smoothed(projected @ method.text_features(torch.arange(3)).T),
    }
    assert terms.keys() == expected.keys()
    for name, value in expected.items():
        assert terms[name].item() == pytest.approx(value, rel=1e-4, abs=1e-5), name


@torch.no_grad()
def test_the_features_are_the_towers(images):
    method, data = clip_reid().eval(), batch(images)
    outputs, visual = method(data), method.image.visual
    tokens = method.image.start(images)
    for block in visual.transformer.resblocks[:2]:
        tokens = block(tokens)
    torch.testing.assert_close(outputs.before.features, tokens[:, 0])
    last = visual.ln_post(visual.transformer.resblocks[2](tokens))[:, 0]
    torch.testing.assert_close(outputs.identity.features, last)
    torch.testing.assert_close(outputs.projected.features, last @ visual.proj)
    torch.testing.assert_close(method.image_features(images), last @ visual.proj)
    torch.testing.assert_close(method.image_features(images), visual(images))  # open_clip's own


@pytest.mark.parametrize("neck", ["before", "after"])
@torch.no_grad()
def test_what_images_are_compared_by(images, neck):
    data = batch(images)
    for method, width in ((baseline(neck=neck), 16), (clip_reid(texts=False, neck=neck), 28)):
        method.eval()
        outputs = method(data.only(method.inference_inputs))
        heads = [head for head in (outputs.identity, outputs.projected) if head is not None]
        parts = [head.features if neck == "before" else head.embedding for head in heads]
        features = method.embed(outputs)
        assert features.shape == (6, width)
        assert torch.equal(features, torch.cat(parts, dim=1))
        assert method.inference_inputs == {"images"}


def test_an_unknown_neck_is_refused():
    with pytest.raises(InputError, match="did you mean before"):
        baseline(neck="befor")


def test_one_step_reaches_every_parameter_but_the_texts(images):
    for method in (baseline(), clip_reid()):
        data = batch(images)
        sum(method.losses(method(data), data).values()).backward()
        for name, parameter in method.named_parameters():
            if parameter.requires_grad:
                assert parameter.grad.isfinite().all(), name
                assert parameter.grad.any(), name
    frozen = {name for name, parameter in method.named_parameters() if not parameter.requires_grad}
    texts = {name for name, _ in method.named_parameters() if name.startswith("text.")}
    assert frozen == texts | {"head.norm.bias", "projected_head.norm.bias"}
    assert not method.prompts.requires_grad
    assert not method.text_classifier.weight.requires_grad


def test_losses_of_ones_own(images):
    """Those of features go to the feature without a head too, those of logits do not."""
    losses = nn.ModuleDict({"far": FeatureLoss(TripletLoss(margin=2.0)), "sure": LogitLoss(IdentityLoss())})
    method, data = clip_reid(objectives=losses, text_loss=IdentityLoss(0.5)), batch(images)
    outputs = method(data)
    terms = method.losses(outputs, data)
    assert set(terms) == {
        *("loss_far_id", "loss_far_projected", "loss_far_before"),
        *("loss_sure_id", "loss_sure_projected", "loss_i2t"),
    }
    products = outputs.projected.features @ method.text_classifier.weight.T
    torch.testing.assert_close(terms["loss_i2t"], 0.5 * nn.functional.cross_entropy(products, PIDS))


def test_classifiers_start_at_a_thousandth():
    wide = CLIPReID(*vars(build_clip(image_size=(32, 16), **{**TINY, "width": 64})).values(), 200)
    assert wide.head.classifier.weight.std().item() == pytest.approx(0.001, rel=0.05)


@torch.no_grad()
def test_a_text_is_that_of_the_whole_sentence():
    """With the learned words in their places, all 77 positions computed, the end's row taken."""
    method = clip_reid()
    tokens = method.text.tokenize("A photo of a X X X X person.")
    assert tokens[0, :13].tolist() == [49406, 320, 1125, 539, 320, 343, 343, 343, 343, 2533, 269, 49407, 0]
    for label in range(3):
        embedded = method.text.embed(tokens)
        embedded[0, 5:9] = method.prompts[label]
        whole = method.text(tokens, embedded)[0, 11]
        torch.testing.assert_close(method.text_features(torch.tensor([label]))[0], whole)
        torch.testing.assert_close(method.text_classifier.weight[label], whole)
    assert not torch.allclose(method.text_classifier.weight[0], method.text_classifier.weight[1], atol=1e-3)


@torch.no_grad()
def test_the_text_of_the_words_themselves_is_open_clips():
    method = clip_reid()
    tokens = method.text.tokenize("A photo of a X X X X person.")
    method.prompts[:] = method.text.embed(tokens)[0, 5:9]
    torch.testing.assert_close(method.text_features(torch.tensor([1])), method.text.text(tokens))


def test_the_first_stages_loss_by_hand():
    method = clip_reid()
    features, labels = torch.randn(5, 12, generator=torch.Generator().manual_seed(2)), torch.tensor([2, 0, 2, 1, 0])
    texts = method.text_features(labels)  # one an image, as the released code has it
    expected = 0.0
    for logits in (features @ texts.T, texts @ features.T):
        logs = logits.log_softmax(dim=1)
        for row, label in enumerate(labels):
            partners = [logs[row, other].item() for other in range(5) if labels[other] == label]
            expected -= sum(partners) / len(partners) / 5
    assert method.prompt_loss(features, labels).item() == pytest.approx(expected, rel=1e-5)


def separable() -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(3).repeat(8)
    noise = torch.randn(24, 12, generator=torch.Generator().manual_seed(3))
    return 4 * torch.eye(12)[labels] + 0.1 * noise, labels


def test_the_first_stage_learns_the_prompts_alone():
    method = clip_reid(texts=False)
    before = {name: value.clone() for name, value in (*method.named_parameters(), *method.named_buffers())}
    reported = []
    schedule = PromptSchedule(epochs=12, rate=0.05, batch=7, warmup_epochs=2, warmup_rate=0.01)
    losses = learn_prompts(method, *separable(), schedule, report=lambda *progress: reported.append(progress))
    after = dict((*method.named_parameters(), *method.named_buffers()))
    changed = [name for name, value in after.items() if not torch.equal(value, before[name])]
    assert changed == ["prompts", "text_classifier.weight"]
    assert reported == list(enumerate(losses, 1))
    assert losses[-1] < losses[0] - 0.5
    assert not method.prompts.requires_grad
    assert all(parameter.grad is None for parameter in method.parameters())
    assert torch.equal(method.text_classifier.weight, method.text_features(torch.arange(3)))


def test_the_first_stage_step_by_step():
    """Two epochs by torch's Adam, in the order that the seed gives."""
    schedule = PromptSchedule(epochs=2, rate=0.02, batch=16, weight_decay=0.1, warmup_epochs=0, min_rate=0.01)
    method, other = clip_reid(), clip_reid()
    features, labels = separable()
    losses = learn_prompts(method, features, labels, schedule, seed=5)

    order, expected = torch.Generator().manual_seed(5), []
    optimizer = torch.optim.Adam([other.prompts.requires_grad_()], weight_decay=0.1)
    for rate in (0.015, 0.01):  # half a cosine
        optimizer.param_groups[0]["lr"], total = rate, 0.0
        for chosen in torch.randperm(24, generator=order).split([16, 8]):
            loss = other.prompt_loss(features[chosen], labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(chosen) / 24
        expected.append(total)
    assert losses == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(method.prompts, other.prompts.detach())


def test_the_first_stage_leaves_random_numbers_alone():
    method = clip_reid()
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    learn_prompts(method, *separable(), PromptSchedule(epochs=1))
    assert torch.equal(torch.rand(3), expected)


def test_a_first_stage_that_diverges_is_refused():
    method = clip_reid()
    features, labels = separable()
    with pytest.raises(InputError, match="nan in epoch 1: lower the rate"):
        learn_prompts(method, features * torch.inf, labels, PromptSchedule(epochs=2))


def test_rates_of_the_first_stage():
    schedule = PromptSchedule()
    assert schedule.compute_rate(1) == pytest.approx(1e-5 + (3.5e-4 - 1e-5) / 5)
    assert schedule.compute_rate(4) == pytest.approx(1e-5 + (3.5e-4 - 1e-5) * 4 / 5)
    assert schedule.compute_rate(60) == pytest.approx((3.5e-4 + 1e-6) / 2)
    assert schedule.compute_rate(120) == pytest.approx(1e-6)
    assert max(range(1, 121), key=schedule.compute_rate) == 5


@pytest.mark.parametrize(
    ("name", "value"), [("epochs", -1), ("batch", 0), ("rate", -1e-3), ("warmup_epochs", -2), ("min_rate", -1.0)]
)
def test_a_bad_schedule_is_refused(name, value):
    with pytest.raises(InputError, match=f"{name}={value}"):
        PromptSchedule(**{name: value})


def test_without_texts_there_is_no_second_stage(images):
    method, data = clip_reid(texts=False), batch(images)
    with pytest.raises(InputError, match="no texts to train with yet"):
        method.losses(method(data), data)
    method.load_state_dict(clip_reid().state_dict())
    assert method.text_classifier.ready
    method.losses(method(data), data)


def test_the_state_dict_has_each_tower_once_and_no_prompts():
    method = clip_reid()
    state = method.state_dict()
    assert "prompts" not in state
    assert state["text_classifier.weight"].shape == (3, 12)
    storages = [value.data_ptr() for value in state.values()]
    assert len(set(storages)) == len(storages)
    assert sum("token_embedding" in name for name in state) == 1


def test_a_sentence_that_does_not_fit_is_refused():
    clip = build_clip(image_size=(32, 16), text_length=11, **TINY)
    with pytest.raises(InputError, match="text_length=11 should be 12 or more"):
        CLIPReID(clip.image, clip.text, 3)


def test_heads_of_another_kind(images):
    made = []

    class Head(nn.Module):
        def __init__(self, width, classes):
            super().__init__()
            made.append((width, classes))
            self.head = nn.Linear(width, classes)

        def forward(self, features, labels=None):
            return HeadOutputs(features, features, self.head(features))

    method, data = clip_reid(make_head=Head), batch(images)
    assert made == [(16, 3), (12, 3)]
    sum(method.losses(method(data), data).values()).backward()
