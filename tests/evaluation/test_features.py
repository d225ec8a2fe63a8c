import numpy as np
import pytest

from agreid_plugin.data.datasets import Dataset, QueryGallery
from agreid_plugin.data.protocols import Meta, protocol, select
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import (
    FeatureSet,
    evaluate,
    evaluate_all,
    evaluate_text,
    list_records,
    load_features,
    rerank,
    save_features,
)
from agreid_plugin.evaluation.multi_protocol import caption_meta
from agreid_plugin.types import Record, View


def images(count: int, **values) -> list[Record]:
    return [
        Record(
            f"{n:03}.jpg",
            pid=n % 5,
            camera=n % 3,
            view=View(n // 5 % 2),
            tags={"time": "day"},
            **{"split": "query" if n < count // 3 else "gallery", **values},
        )
        for n in range(count)
    ]


def cargo(seed: int = 0, count: int = 60, **values) -> FeatureSet:
    records = images(count)
    dataset = Dataset("CARGO", "data/cargo", (*records, Record("train.jpg", 9)))
    rng = np.random.default_rng(seed)
    return FeatureSet(dataset, records, (rng.standard_normal((count, 8)).astype(np.float32),), **values)


def text_set(seed: int = 0) -> FeatureSet:
    records = [
        Record(r.path, r.pid, r.camera, r.view, split="test", captions=("a man",) * (n % 3))
        for n, r in enumerate(images(30))
    ]
    rng = np.random.default_rng(seed)
    kinds = [tuple(rng.standard_normal((n, 8)).astype(np.float32) for _ in range(2)) for n in (30, 30)]
    return FeatureSet(Dataset("TAG-PEDES", "data/tag", tuple(records)), records, *kinds)


def test_every_protocol_from_one_set_equals_single_evaluations():
    features = cargo(views="given")
    results = evaluate_all(features)
    assert set(results) == {f"CARGO/{name}" for name in ("ALL", "A2A", "G2G", "A2G", "G2A", "AG-both", "AG-cross")}
    for name, metrics in results.items():
        chosen = select(protocol(name), features.dataset)
        sides = [
            features.images[0][[int(record.path[:3]) for record in side]] for side in (chosen.query, chosen.gallery)
        ]
        alone = evaluate(*sides, Meta.collect(chosen.query), Meta.collect(chosen.gallery), protocol(name))
        assert metrics.values == alone.values
        assert metrics.views == "given"


def test_named_protocols_with_reranking():
    results = evaluate_all(cargo(), [protocol("CARGO/A2G")], distances=rerank)
    assert list(results) == ["CARGO/A2G"]
    assert "re-ranked" in results["CARGO/A2G"].distance


def test_text_protocols():
    features = text_set()
    results = evaluate_all(features)
    assert set(results) == {"TAG-PEDES/T2I", "TAG-PEDES/T2I-aerial", "TAG-PEDES/T2I-ground"}
    assert results["TAG-PEDES/T2I"].queries == 30
    records = list(features.dataset.records)
    ground = [n for n, record in enumerate(records) if record.view is View.GROUND]
    pairs = [(c, i[ground]) for c, i in zip(features.captions, features.images, strict=True)]
    metas = caption_meta(records), Meta.collect(records)[ground]
    alone = evaluate_text(pairs, *metas, protocol("TAG-PEDES/T2I-ground"))
    assert results["TAG-PEDES/T2I-ground"].values == alone.values


def test_caption_rows():
    features = text_set()
    assert features.caption_rows(features.records[4:1:-1]).tolist() == [3, 1, 2]  # of 1, 0 and 2 captions
    assert features.caption_rows(features.records).tolist() == list(range(30))


@pytest.mark.parametrize("make", [cargo, text_set])
def test_file_round_trip(tmp_path, make):
    features = make()
    save_features(tmp_path / "features.npz", features)
    loaded = load_features(tmp_path / "features.npz")
    assert loaded.records == list(features.records)
    assert [r.path for r in loaded.dataset.records] == [r.path for r in features.records]  # train has no features
    for name in ("images", "captions"):
        for ours, theirs in zip(getattr(features, name), getattr(loaded, name), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    ours, theirs = evaluate_all(features), evaluate_all(loaded)
    assert {name: m.as_dict() for name, m in ours.items()} == {name: m.as_dict() for name, m in theirs.items()}


def test_list_files_are_kept(tmp_path):
    records = images(30)
    sides = QueryGallery(tuple(records[:5]), tuple(records[10:]))
    dataset = Dataset("LAGPeR", "data", tuple(records), lists={"exp3_A2G+.txt": sides})
    save_features(tmp_path / "f.npz", FeatureSet(dataset, records, (np.eye(30),), views="predicted"))
    loaded = load_features(tmp_path / "f.npz")
    assert loaded.dataset.lists == {"exp3_A2G+.txt": sides}
    assert loaded.views == "predicted"
    assert list(evaluate_all(loaded)) == ["LAGPeR/A2G"]


def test_records_to_extract_are_each_image_once():
    dataset = cargo().dataset
    wanted = [protocol("CARGO/A2G"), protocol("CARGO/A2A")]
    found = list_records(dataset, wanted)
    assert [r.path for r in found] == [
        r.path for r in dataset.records if r.split == "gallery" or (r.split == "query" and r.view is View.AERIAL)
    ]


def test_bad_sets_are_refused():
    records = images(4)
    dataset = Dataset("CARGO", "data", tuple(records))
    with pytest.raises(InputError, match="3 features for 4 images"):
        FeatureSet(dataset, records, (np.ones((3, 2)),))
    with pytest.raises(InputError, match="4 features for 1 different images"):
        FeatureSet(dataset, records[:1] * 4, (np.ones((4, 2)),))
    with pytest.raises(InputError, match=r"1 of 4 image features have NaN.*: 002\.jpg"):
        FeatureSet(dataset, records, (np.where(np.arange(4)[:, None] == 2, np.nan, np.ones((4, 2))),))
    with pytest.raises(InputError, match="captions: 1 features for 0 images"):
        FeatureSet(dataset, records, (np.ones((4, 2)),), captions=(np.ones((1, 2)),))
    with pytest.raises(InputError, match=r"1 of 2 images have no feature, first 003\.jpg"):
        FeatureSet(dataset, records[:3], (np.ones((3, 2)),)).rows(records[2:])


def test_other_files_are_refused(tmp_path):
    (tmp_path / "text.npz").write_text("no archive")
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    np.savez(tmp_path / "pickle.npz", about=np.array([{"a": 1}], dtype=object))
    np.save(tmp_path / "array.npy", np.ones(3))
    for name in ("text.npz", "other.npz", "pickle.npz", "array.npy"):
        with pytest.raises(InputError, match="not features saved by this package"):
            load_features(tmp_path / name)
    with pytest.raises(InputError, match="does not exist"):
        load_features(tmp_path / "none.npz")
