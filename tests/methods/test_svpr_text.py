"""The text side of SVPR-ReID: prompts in sentences, each encoded once, as far as it is read, and remembered."""

import pytest
import torch
from small_svpr import SCHEMA, THREE_WORDS, small_clip
from torch import Tensor, nn

from agreid_plugin.data.attributes import AttributeSchema
from agreid_plugin.errors import InputError
from agreid_plugin.methods.svpr.text import WORDS, SentenceEncoder, SentenceTable, ViewWords, encode_per_image
from agreid_plugin.types import UNKNOWN

GROUND, AERIAL = 0, 1
RELEASED = {"word_key": True, "replaced": False, "style": "released"}
VARIANTS = [{}, RELEASED]


def sentence_encoder(words=("ground", "aerial"), schema=SCHEMA, **arguments) -> SentenceEncoder:
    side = SentenceEncoder(small_clip().text, words, schema, **arguments)
    torch.manual_seed(5)
    for prompts in (side.view_prompts, side.attribute_prompts):
        if prompts is not None:
            nn.init.normal_(prompts)
    return side


def outputs_of(side: SentenceEncoder, sentence: str, prompts: Tensor, replaced: bool) -> Tensor:
    """Every position of a whole sentence, its embeddings changed one by one: (L, E)."""
    tokens = side.tower.tokenize([sentence])
    embedded = side.tower.embed(tokens)[0].clone()
    for place, prompt in enumerate(prompts):
        assert tokens[0, 5 + place] == 343  # x
        embedded[5 + place] = prompt if replaced else embedded[5 + place] + prompt
    return side.tower(tokens, embedded[None])[0]


class Counted:
    """Counts the sentences that go through the text tower, and their lengths."""

    def __init__(self, side: SentenceEncoder):
        self.shapes: list[tuple[int, int]] = []
        side.tower.register_forward_hook(lambda _, inputs, __: self.shapes.append(tuple(inputs[0].shape)))


# What is read


@torch.no_grad()
def test_what_is_read_of_a_view_in_the_paper():
    side = sentence_encoder()
    found = side.views(torch.tensor([AERIAL, GROUND]))
    for place, word in enumerate(("aerial", "ground")):
        whole = outputs_of(side, f"A photo of a X X X X person from {word} view.", side.view_prompts, True)
        torch.testing.assert_close(found.prompts[place], whole[5:9])
        torch.testing.assert_close(found.key[place], whole[14])  # where the sentence ends


@torch.no_grad()
def test_what_is_read_of_a_view_as_released():
    side = sentence_encoder(tuple(THREE_WORDS.values()), **RELEASED)
    found = side.views(torch.arange(3))
    for place, word in enumerate(THREE_WORDS.values()):
        whole = outputs_of(side, f"A photo of a X X X X person from {word} view.", side.view_prompts, True)
        torch.testing.assert_close(found.prompts[place], whole[5:9])
        torch.testing.assert_close(found.key[place], whole[11])  # the word


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_what_is_read_of_attributes(variant):
    side = sentence_encoder(**variant)
    rows = torch.tensor([[0, 2, 1], [1, UNKNOWN, 0], [UNKNOWN] * 3])
    begin = {"paper": " person with attributes:", "released": "  person with the following attributes:"}[side.style]
    neutral = {"paper": " person. Attributes are unknown.", "released": "  person. Attributes are unknown."}[side.style]
    endings = [f"{begin} hair is long, bag is back, hat is no.", f"{begin} hair is short, hat is yes.", neutral]
    for found, ending in zip(side.attributes(rows), endings, strict=True):
        sentence = f"A photo of a X X X X{ending}"
        whole = outputs_of(side, sentence, side.attribute_prompts, replaced=side.style == "paper")
        end = side.tower.find_ends(side.tower.tokenize([sentence])).item()
        torch.testing.assert_close(found, whole[end] + whole[5:9].mean(dim=0))


@torch.no_grad()
def test_another_number_of_prompts():
    side = sentence_encoder(prompts=2)
    sentence = "A photo of a X X person from ground view."
    whole = outputs_of(side, sentence, side.view_prompts, True)
    found = side.views(torch.tensor([GROUND]))
    torch.testing.assert_close(found.prompts[0], whole[5:7])
    torch.testing.assert_close(found.key[0], whole[12])


# Each sentence once, as far as it is read


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_sentences_are_shared_and_cut(variant):
    side = sentence_encoder(**variant)
    counted = Counted(side)
    side.views(torch.tensor([1, 0, 1, 1, 0]))
    side.attributes(torch.tensor([[0, 2, 1], [0, 2, 1], [UNKNOWN] * 3]))
    longest = side.tower.count(side.sentence("attributes", (0, 2, 1)))
    assert counted.shapes == [(2, 12 if side.word_key else 15), (2, longest)]


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_results_equal_those_of_every_image_by_itself(variant):
    side = sentence_encoder(**variant)
    counted = Counted(side)
    views, attributes = torch.tensor([1, 0, 1]), torch.tensor([[0, 2, 1], [0, 2, 1], [1, UNKNOWN, 0]])
    of_view, of_attributes = encode_per_image(side, views, attributes)
    assert counted.shapes == [(3, 48), (3, 48)]
    torch.testing.assert_close(side.views(views).prompts, of_view.prompts)
    torch.testing.assert_close(side.views(views).key, of_view.key)
    torch.testing.assert_close(side.attributes(attributes), of_attributes)
    assert encode_per_image(side, None, None) == (None, None)


def test_a_sentence_is_tokenized_once(monkeypatch):
    side, seen = sentence_encoder(), []
    tokenize = side.tower.tokenize
    monkeypatch.setattr(side.tower, "tokenize", lambda sentences: seen.extend(sentences) or tokenize(sentences))
    for _ in range(3):
        side.views(torch.tensor([0, 1, 1]))
        side.attributes(torch.tensor([[0, 2, 1], [0, 2, 1]]))
    assert len(seen) == len(set(seen)) == 3


def test_gradients_reach_the_prompts_through_the_frozen_tower():
    side = sentence_encoder()
    of_view = side.views(torch.tensor([0, 1]))
    (of_view.prompts.square().sum() + of_view.key.sum() + side.attributes(torch.zeros(1, 3).long()).sum()).backward()
    reached = {name for name, parameter in side.named_parameters() if parameter.grad is not None}
    assert reached == {"view_prompts", "attribute_prompts"}
    assert side.view_prompts.grad.any(dim=1).all()
    assert side.attribute_prompts.grad.any(dim=1).all()


# Remembering


@torch.no_grad()
def test_what_is_remembered_equals_what_is_computed():
    side = sentence_encoder().eval()
    counted = Counted(side)
    labels, rows = torch.tensor([1, 0, 1]), torch.tensor([[0, 2, 1], [UNKNOWN] * 3])
    fresh, rows_text = side.views(labels), side.attributes(rows)
    for _ in range(2):
        remembered = side.views(labels, use_cache=True)
        torch.testing.assert_close(remembered.prompts, fresh.prompts, rtol=0, atol=1e-6)
        torch.testing.assert_close(remembered.key, fresh.key, rtol=0, atol=1e-6)
        torch.testing.assert_close(side.attributes(rows, use_cache=True), rows_text, rtol=0, atol=1e-6)
    assert len(counted.shapes) == 4  # twice fresh, twice to remember


@torch.no_grad()
def test_only_what_is_new_is_computed():
    side = sentence_encoder(tuple(THREE_WORDS.values())).eval()
    counted = Counted(side)
    side.views(torch.tensor([1, 1]), use_cache=True)
    side.views(torch.tensor([2, 1, 0]), use_cache=True)
    assert [sentences for sentences, _ in counted.shapes] == [1, 2]
    torch.testing.assert_close(side.views(torch.arange(3), use_cache=True).key, side.views(torch.arange(3)).key)


def changed_prompts(side: SentenceEncoder) -> None:
    side.view_prompts.mul_(-1)


def changed_tower(side: SentenceEncoder) -> None:
    side.tower.text.ln_final.weight.mul_(2)


def loaded(side: SentenceEncoder) -> None:
    side.load_state_dict({name: value + 0.5 for name, value in side.state_dict().items()})


def replaced(side: SentenceEncoder) -> None:
    side.view_prompts.data = -side.view_prompts.data


def trained(side: SentenceEncoder) -> None:
    side.train()
    side.view_prompts.data.mul_(-1)  # no version counts this one
    side.eval()


def doubled(side: SentenceEncoder) -> None:
    side.double()


@pytest.mark.parametrize("change", [changed_prompts, changed_tower, loaded, replaced, trained, doubled])
@torch.no_grad()
def test_what_changed_is_computed_anew(change):
    side, labels = sentence_encoder().eval(), torch.tensor([0, 1])
    before = side.views(labels, use_cache=True).key
    change(side)
    after = side.views(labels, use_cache=True).key
    torch.testing.assert_close(after, side.views(labels).key)
    assert after.dtype != before.dtype or not torch.allclose(after, before)


@torch.no_grad()
def test_half_precision_is_remembered_apart():
    side, labels = sentence_encoder().eval(), torch.tensor([0, 1])
    full = side.views(labels, use_cache=True).key
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = side.views(labels, use_cache=True).key
    assert not torch.equal(half.float(), full)
    assert torch.equal(side.views(labels, use_cache=True).key, full)


def test_nothing_is_remembered_where_gradients_flow():
    side, labels = sentence_encoder().eval(), torch.tensor([0, 1])
    with torch.no_grad():
        side.views(labels, use_cache=True)
    assert side.views(labels, use_cache=True).key.requires_grad


def test_parameters_that_do_not_count_changes_are_not_trusted():
    with torch.inference_mode():
        side, labels = sentence_encoder().eval(), torch.tensor([0, 1])
        before = side.views(labels, use_cache=True).key
        side.view_prompts.mul_(-1)
        assert not torch.allclose(side.views(labels, use_cache=True).key, before)


# Words and room


def test_the_papers_words():
    words = ViewWords()
    assert words.distinct == ("ground", "aerial")
    assert words.inputs == {"views"}
    assert words.encode(torch.tensor([0, 1, UNKNOWN])).tolist() == [AERIAL, GROUND, UNKNOWN]


def test_words_by_platform():
    words = ViewWords(THREE_WORDS)
    assert words.distinct == ("ground", "aerial", "<end_of_text>")
    assert words.inputs == {"views", "platforms"}
    views = torch.tensor([0, 1, 1, 1, 0, UNKNOWN])
    platforms = torch.tensor([0, 1, 2, UNKNOWN, UNKNOWN, 1])  # uav, cctv, wearable
    assert words.encode(views, platforms).tolist() == [2, 0, 1, UNKNOWN, 2, UNKNOWN]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (WORDS | {"cctv": "aerial", "wearable": "aerial"}, "words has 'aerial' for every platform"),
        ({"cctv": "ground", "uav": "aerial"}, "words has none for the platform wearable"),
        (WORDS | {"uav": " "}, "words has none for the platform uav"),
        (WORDS | {"drone": "aerial"}, "platform in words 'drone' unknown"),
    ],
)
def test_bad_words(words, message):
    with pytest.raises(InputError, match=message):
        ViewWords(words)


def test_a_word_of_two_tokens_suits_the_paper_alone():
    sentence_encoder(("ground", "bird eye"))
    with pytest.raises(InputError, match="word 'bird eye' should be one token, it is 2"):
        sentence_encoder(("ground", "bird eye"), **RELEASED)


def test_an_unknown_view_has_no_sentence():
    with pytest.raises(InputError, match=r"^views or platforms have -1 \(unknown\)"):
        sentence_encoder().views(torch.tensor([0, UNKNOWN]))


def test_sentences_that_would_be_cut_are_refused():
    schema = AttributeSchema({f"attribute {number}": ("a", "some longer value") for number in range(8)})
    with pytest.raises(
        InputError, match=r"may have \d+ tokens, but the text tower takes 48: .*text_length=\d+ or more"
    ):
        sentence_encoder(schema=schema)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_table_says_at_test_time_what_the_text_says(variant):
    words = tuple(THREE_WORDS.values()) if variant else ("ground", "aerial")
    side = sentence_encoder(words, **variant).eval()
    table, labels = SentenceTable(side), torch.tensor([1, 0, 1])
    with torch.no_grad():
        torch.testing.assert_close(table.views(labels).prompts, side.views(labels).prompts)
        torch.testing.assert_close(table.views(labels).key, side.views(labels).key)
        nothing = torch.full((1, len(side.schema)), UNKNOWN)
        torch.testing.assert_close(table.attributes(nothing), side.attributes(nothing))
    assert not list(table.parameters())
    assert SentenceTable(sentence_encoder((), SCHEMA)).view_table is None
