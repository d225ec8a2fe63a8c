import json

import numpy as np
import pytest
from evaluation_cases import TINY, make_protocol, random_case, squared_distances

from agreid_plugin.data.protocols import Meta, hidden_mask
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import Calibration, calibrate, roc
from agreid_plugin.types import Record, View


def on_a_line(*images: tuple[int, View, float]) -> tuple[np.ndarray, Meta]:
    """Images as (person, view, place on a line)."""
    records = [Record("", pid, view=view) for pid, view, _ in images]
    return np.array([[place] for *_, place in images]), Meta.collect(records)


A, G = View.AERIAL, View.GROUND
QUERY = on_a_line((1, A, 0.0), (2, A, 10.0))
# squared distances: person 1: own 1, 16; other 64, 100 .. person 2: own 4, 0; other 81, 36
GALLERY = on_a_line((1, G, 1.0), (1, G, 4.0), (2, G, 8.0), (2, G, 10.0))


def calibrate_line(**options) -> Calibration:
    return calibrate(QUERY[0], GALLERY[0], QUERY[1], GALLERY[1], make_protocol(), metric="euclidean", **options)


@pytest.mark.parametrize(
    # impostors 36, 64, 81, 100; genuine 0, 1, 4, 16
    ("fpr", "threshold"),
    [(0.25, 36), (0.49, 36), (0.5, 64), (0.75, 81)],
)
def test_threshold_by_hand(fpr, threshold):
    point = calibrate_line(fprs=[fpr]).point("aerial->ground", fpr)
    assert point.threshold == threshold
    assert point.tpr == 1


def test_true_positive_rates_are_told_by_direction_in_percent():
    result = calibrate_line(fprs=[0.25, 0.5])
    assert result.true_positive_rates() == {"aerial->ground TPR@FPR=0.25": 100, "aerial->ground TPR@FPR=0.5": 100}


def test_genuine_pairs_beyond_the_threshold_do_not_count():
    gallery = on_a_line((1, G, 9.0), (1, G, 1.0), (2, G, 3.0), (3, G, 6.0))
    # query 1 at 0: own 81 and 1, others 9 and 36; query 2 at 10: own 49, others 1, 81, 16
    result = calibrate(QUERY[0], gallery[0], QUERY[1], gallery[1], make_protocol(), metric="euclidean", fprs=[0.5])
    point = result.point("aerial->ground", 0.5)
    assert (point.threshold, point.tpr) == (9, pytest.approx(1 / 3))  # of impostors 1, 9, 16, 36, 81 two may pass


def test_tied_impostors_pass_together_or_not_at_all():
    gallery = on_a_line((1, G, 0.0), (2, G, 1.0), (2, G, -1.0), (3, G, 1.0))
    query = QUERY[0][:1], QUERY[1][[0]]
    pair = query[0].repeat(2, axis=0), Meta.collect([Record("", 1, view=A), Record("", 3, view=A)])
    result = calibrate(pair[0], gallery[0], pair[1], gallery[1], make_protocol(), metric="euclidean", fprs=[0.5])
    # impostors: 1, 1, 1 and 0, 1, 1: three may pass, five at distance 1 cannot
    assert result.point("aerial->ground", 0.5).threshold == 0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("hide", [(), ("same_camera_same_id",), ("same_view",), ("same_time", "same_view_same_id")])
def test_rates_hold_and_are_the_best_possible(seed, hide):
    case, protocol = random_case(seed, queries=40), make_protocol(*hide)
    result = calibrate(*case.features, *case.metas, protocol, metric="euclidean", fprs=[0.05, 0.3], draws=20)
    query, gallery = case.metas
    distances = squared_distances(case)
    same = query.pid[:, None] == gallery.pid
    seen = ~hidden_mask(protocol, query, gallery)
    for name, direction in result.directions.items():
        views = [{"aerial": 0, "ground": 1, "unknown": -1}[word] for word in name.split("->")]
        inside = seen & (query.view == views[0])[:, None] & (gallery.view == views[1])
        impostors, genuine = distances[inside & ~same], distances[inside & same]
        assert (direction.genuine, direction.impostors) == (len(genuine), len(impostors))
        for point in direction.points:
            assert np.mean(impostors <= point.threshold) <= point.fpr
            farther = impostors[impostors > point.threshold].min()
            assert np.mean(impostors <= farther) > point.fpr
            assert point.tpr == pytest.approx(np.mean(genuine <= point.threshold))
            assert point.threshold_interval.low <= point.threshold_interval.high


def test_forgetting_far_impostors_changes_no_threshold(monkeypatch):
    case, protocol = random_case(0, queries=60, gallery=200), make_protocol()
    whole = calibrate(*case.features, *case.metas, protocol, fprs=[0.01, 0.1], draws=5)
    monkeypatch.setattr(roc, "MIN_IMPOSTORS", 1)
    few = calibrate(*case.features, *case.metas, protocol, fprs=[0.01, 0.1], draws=5, memory=TINY)
    assert len(whole.directions) == 9
    for name in whole.directions:
        for ours, theirs in zip(whole.directions[name].points, few.directions[name].points, strict=True):
            assert (ours.threshold, ours.tpr) == (theirs.threshold, theirs.tpr)


def test_intervals_are_fixed_by_the_seed_and_hold_the_estimate():
    rng = np.random.default_rng(0)
    pids = np.repeat(np.arange(40), 4)
    records = [Record("", int(pid), camera=n % 4, view=A if n % 2 else G) for n, pid in enumerate(pids)]
    centers = rng.standard_normal((40, 8))[pids]
    sides = [centers + 0.4 * rng.standard_normal(centers.shape) for _ in range(2)]
    meta = Meta.collect(records)
    results = [calibrate(*sides, meta, meta, make_protocol(), fprs=[0.01], draws=200, seed=seed) for seed in (1, 1, 2)]
    assert results[0] == results[1] != results[2]
    for name in ("aerial->ground", "ground->aerial", "aerial->aerial"):
        point = results[0].point(name, 0.01)
        assert point.threshold_interval.low < point.threshold < point.threshold_interval.high
        assert point.tpr_interval.low < point.tpr < point.tpr_interval.high


def test_roc_rises():
    curve = np.array(calibrate_line(fprs=[0.5]).directions["aerial->ground"].roc)
    assert (np.diff(curve, axis=0) >= 0).all()
    assert curve[-1].tolist() == [1, 1]


def test_rates_that_cannot_be_measured_are_noted_or_refused():
    result = calibrate_line(fprs=[1e-4, 0.5])
    assert [point.fpr for point in result.directions["aerial->ground"].points] == [0.5]
    assert result.notes == (
        "aerial->ground: 4 genuine and 4 impostor pairs of 2 query identities do not show a false positive rate of "
        "0.0001",
    )
    with pytest.raises(InputError, match="nothing to calibrate on: aerial->ground: 4 genuine"):
        calibrate_line(fprs=[1e-4])
    with pytest.raises(InputError, match=r"between 0 and 1, got 1\.5"):
        calibrate_line(fprs=[1.5])


def test_one_person_cannot_be_drawn_from():
    with pytest.raises(InputError, match="2 genuine and 2 impostor pairs of 1 query identities"):
        calibrate(QUERY[0][:1], GALLERY[0], QUERY[1][:1], GALLERY[1], make_protocol(), fprs=[0.5])


def test_unknown_points_are_refused():
    result = calibrate_line(fprs=[0.5])
    with pytest.raises(InputError, match="direction 'ground->aerial' unknown"):
        result.point("ground->aerial", 0.5)
    with pytest.raises(InputError, match=r"false positive rate '0.1' unknown.*known: 0.5"):
        result.point("aerial->ground", 0.1)


def test_file_round_trip(tmp_path):
    result = calibrate_line(fprs=[1e-4, 0.5], views="given")
    result.save(tmp_path / "calibration.json")
    assert Calibration.load(tmp_path / "calibration.json") == result
    assert json.loads((tmp_path / "calibration.json").read_text())["views"] == "given"


def test_other_files_are_refused(tmp_path):
    (tmp_path / "other.json").write_text('{"directions": {"a": {}}}')
    with pytest.raises(InputError, match=r"other\.json: not a calibration"):
        Calibration.load(tmp_path / "other.json")


@pytest.mark.parametrize(("damage", "said"), [({"roc": [[0.5]]}, "unpack"), ({"genuine": 2.5}, "2.5 is no count")])
def test_damaged_directions_are_refused(tmp_path, damage, said):
    content = calibrate_line(fprs=[0.5]).as_dict()
    content["directions"]["aerial->ground"].update(damage)
    (tmp_path / "calibration.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=f"not a calibration: .*{said}"):
        Calibration.load(tmp_path / "calibration.json")


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(InputError, match="cannot be written"):
        calibrate_line(fprs=[0.5]).save(tmp_path / "nowhere" / "calibration.json")
