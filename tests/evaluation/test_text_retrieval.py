import numpy as np
import pytest
from evaluation_cases import TINY, make_protocol

from agreid_plugin.data.protocols import Meta
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import caption_meta, evaluate_text
from agreid_plugin.types import Record, View

# Two captions of person 1's image, one of person 2's; person 1 has a second image.
RECORDS = [
    Record("a", 1, view=View.AERIAL, captions=("tall", "in red")),
    Record("b", 2, view=View.GROUND, captions=("short",)),
    Record("c", 1, view=View.GROUND),
]
IMAGES = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
CAPTIONS = np.array([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0]])


def test_by_hand():
    metas = caption_meta(RECORDS), Meta.collect(RECORDS)
    result = evaluate_text([(CAPTIONS, IMAGES)], *metas, make_protocol(kind="text"))
    # caption 0: a, c, b -> ranks 1, 2; caption 1: b, c, a -> ranks 2, 3; caption 2: a, c, b -> rank 3
    assert result.per_query.first.tolist() == [1, 2, 3]
    assert result.per_query.precision == pytest.approx([1, (1 / 2 + 2 / 3) / 2, 1 / 3])
    assert result.per_query.inverse_penalty == pytest.approx([1, 2 / 3, 1 / 3])
    assert (result["Rank-1"], result["Rank-5"]) == (pytest.approx(100 / 3), 100)
    assert result.queries == 3


def test_global_and_local_similarities_are_averaged():
    local_images = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    local_captions = np.array([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    both = [(CAPTIONS, IMAGES), (local_captions, local_images)]
    result = evaluate_text(both, caption_meta(RECORDS), Meta.collect(RECORDS), make_protocol(kind="text"))
    # caption 0: a 1, b 0, c .8; caption 1: a .5, b .5, c .9; caption 2: a .5, b .5, c .3: ties count against the query
    assert result.per_query.first.tolist() == [1, 1, 2]
    assert result.per_query.precision[1] == pytest.approx((1 + 2 / 3) / 2)


def test_directions_say_from_where_images_are_found():
    metas = caption_meta(RECORDS), Meta.collect(RECORDS)
    result = evaluate_text([(CAPTIONS, IMAGES)], *metas, make_protocol(kind="text"))
    assert set(result.directions) == {"aerial->aerial", "aerial->ground", "ground->ground"}


@pytest.mark.parametrize("seed", range(3))
def test_memory_changes_no_number(seed):
    rng = np.random.default_rng(seed)
    images = Meta.collect([Record("", n // 3) for n in range(90)])
    captions = images[np.repeat(np.arange(90), 2)]
    pairs = [(rng.standard_normal((180, 8)), rng.standard_normal((90, 8))) for _ in range(2)]
    results = [evaluate_text(pairs, captions, images, make_protocol(), memory=memory) for memory in (512, TINY)]
    assert results[0].values == results[1].values
    similarities = np.mean([(a @ b.T) / np.outer(*map(_lengths, (a, b))) for a, b in pairs], axis=0)
    for row in range(180):
        order = np.argsort(-similarities[row])
        assert results[0].per_query.first[row] == 1 + np.argmax(images.pid[order] == captions.pid[row])


def _lengths(rows: np.ndarray) -> np.ndarray:
    return np.linalg.norm(rows, axis=1)


def test_pairs_of_different_sizes_are_refused():
    with pytest.raises(InputError, match=r"different shapes: \(3, 3\), \(2, 3\)"):
        evaluate_text(
            [(CAPTIONS, IMAGES), (CAPTIONS[:2], IMAGES)], caption_meta(RECORDS), Meta.collect(RECORDS), make_protocol()
        )
