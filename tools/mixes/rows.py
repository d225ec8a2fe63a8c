"""The rows of the table of mixes: a part, what it is put into, and the configuration that says so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
AGSYNTH = {"ids": 8, "images_per_id": 8, "size": (64, 32)}  # 4 people to train on
ALL_LOSSES = "[CrossEntropyLoss, TripletLoss, VIAL]"


@dataclass(frozen=True)
class Row:
    """One mix.

    Attributes:
        name: the part, and what it is in.
        group: heading of the table that it is in.
        recipe: the configuration: a file of the repository, or for mmengine the text behind `mmengine.py`.
        settings: keys and values on top of it, all of which have to be read.
        base: keys and values below those, some of which the row may not need.
        without: name of the row that is the same without the part, whose losses have to be others.
    """

    name: str
    group: str
    recipe: str
    settings: tuple[str, ...] = ()
    without: str = ""
    base: tuple[str, ...] = ()

    @property
    def host(self) -> str:
        """Name of the host."""
        return "fast-reid" if self.recipe.endswith(".yml") else "mmengine"


VIT = "configs/fastreid/agsynth_vit.yml"
RESNET = "ResNet-18 in Baseline"
PLAIN = "our ViT in VIF, without VIAL"
RESNET_KEYS = (
    *("MODEL.META_ARCHITECTURE", "Baseline", "MODEL.BACKBONE.NAME", "build_resnet_backbone"),
    *("MODEL.BACKBONE.DEPTH", "18x", "MODEL.BACKBONE.FEAT_DIM", "0", "MODEL.BACKBONE.LAST_STRIDE", "1"),
    *("MODEL.BACKBONE.STRIDE_SIZE", "[16, 16]"),
    *("MODEL.HEADS.NAME", "EmbeddingHead", "MODEL.HEADS.WITH_BNNECK", "True"),
)


def _keys(text: str) -> tuple[str, ...]:
    """Return keys and values: `A.B value; C.D value`."""
    return tuple(part for pair in text.split(";") for part in pair.strip().split(" ", 1))


def _baseline(name: str, group: str, text: str, without: str = RESNET) -> Row:
    """Return a row of fast-reid's Baseline with ResNet-18."""
    return Row(name, group, VIT, _keys(text), without, RESNET_KEYS)


NETWORKS = {
    "ResNet-34": "MODEL.BACKBONE.DEPTH 34x",
    "ResNet-18 IBN": "MODEL.BACKBONE.WITH_IBN True",
    "ResNet-18 SE": "MODEL.BACKBONE.WITH_SE True",
    "ResNet-50 with non-local blocks": "MODEL.BACKBONE.DEPTH 50x; MODEL.BACKBONE.WITH_NL True",
    "ResNeXt-50": "MODEL.BACKBONE.NAME build_resnext_backbone; MODEL.BACKBONE.DEPTH 50x",
    "ResNeSt-50": "MODEL.BACKBONE.NAME build_resnest_backbone; MODEL.BACKBONE.DEPTH 50x",
    "OSNet": "MODEL.BACKBONE.NAME build_osnet_backbone; MODEL.BACKBONE.DEPTH x0_25",
    "RepVGG": "MODEL.BACKBONE.NAME build_repvgg_backbone; MODEL.BACKBONE.DEPTH A0",
    "ShuffleNetV2": "MODEL.BACKBONE.NAME build_shufflenetv2_backbone; MODEL.BACKBONE.DEPTH 0.5x",
    "MobileNetV2": "MODEL.BACKBONE.NAME build_mobilenetv2_backbone; MODEL.BACKBONE.DEPTH 0.1x",
    "MobileNetV3": "MODEL.BACKBONE.NAME build_mobilenetv3_backbone; MODEL.BACKBONE.DEPTH Small",
    "RegNet": "MODEL.BACKBONE.NAME build_regnet_backbone; MODEL.BACKBONE.DEPTH 200x",
    "EfficientNet": "MODEL.BACKBONE.NAME build_effnet_backbone; MODEL.BACKBONE.DEPTH b0",
    "fast-reid's ViT": "MODEL.BACKBONE.NAME build_vit_backbone; MODEL.BACKBONE.DEPTH small",
    "our ViT": "MODEL.BACKBONE.NAME build_plain_vit_backbone; MODEL.BACKBONE.DEPTH tiny",
    "VDT's ViT": "MODEL.BACKBONE.NAME build_vdt_backbone; MODEL.BACKBONE.DEPTH tiny",
    "ViSA's backbone": "MODEL.BACKBONE.NAME build_visa_backbone; MODEL.BACKBONE.DEPTH tiny; MODEL.VISA.NEIGHBORS 4",
    "ViSA's graphs": "MODEL.BACKBONE.NAME build_visa_backbone; MODEL.BACKBONE.DEPTH tiny; MODEL.VISA.NEIGHBORS 4; "
    "MODEL.VISA.VAB False; MODEL.VISA.ETGM False",
    "SVPR-ReID's tower": "MODEL.BACKBONE.NAME build_clip_backbone; MODEL.CLIP.WIDTH 64; MODEL.CLIP.LAYERS 2",
}
EXTERNAL = {
    "timm's ConvNeXt": ("timm", "convnext_atto", "map"),
    "timm's ViT": ("timm", "vit_tiny_patch16_224", "token"),
    "timm's EfficientNet": ("timm", "efficientnet_lite0", "map"),
    "timm's MobileNetV3": ("timm", "mobilenetv3_small_050", "map"),
    "timm's RegNet": ("timm", "regnetx_002", "map"),
    "mmpretrain's ResNet": ("mmpretrain", "ResNet", "map"),
    "mmpretrain's MobileNetV2": ("mmpretrain", "MobileNetV2", "map"),
    "open_clip's ViT": ("open_clip", "ViT-B-16-quickgelu", "token"),
}
OPTIONS = {
    "timm's ViT": '["img_size=(64, 32)"]',
    "mmpretrain's ResNet": '["depth=18"]',
    "open_clip's ViT": '["width=64", "layers=2", "head_width=32", "embed_dim=64"]',
}
HEADS = {
    "ArcSoftmax": "MODEL.HEADS.CLS_LAYER ArcSoftmax; MODEL.HEADS.SCALE 30; MODEL.HEADS.MARGIN 0.3",
    "CosSoftmax": "MODEL.HEADS.CLS_LAYER CosSoftmax; MODEL.HEADS.SCALE 30; MODEL.HEADS.MARGIN 0.3",
    "CircleSoftmax": "MODEL.HEADS.CLS_LAYER CircleSoftmax; MODEL.HEADS.SCALE 30; MODEL.HEADS.MARGIN 0.3",
    "an embedding of 32": "MODEL.HEADS.EMBEDDING_DIM 32",
    "features behind the neck": "MODEL.HEADS.NECK_FEAT after",
    "ClasHead": "MODEL.HEADS.NAME ClasHead",
    "BNNeckHead": "MODEL.HEADS.NAME BNNeckHead",
    "BNNeckHead with ArcSoftmax": "MODEL.HEADS.NAME BNNeckHead; MODEL.HEADS.CLS_LAYER ArcSoftmax",
}
POOLINGS = (
    *("GlobalMaxPool", "GeneralizedMeanPooling", "GeneralizedMeanPoolingP", "AdaptiveAvgMaxPool", "ClipGlobalAvgPool"),
    *("Flatten", "Identity"),
)
LOSSES = {
    "VIAL": f"MODEL.LOSSES.NAME {ALL_LOSSES}",
    "CircleLoss": "MODEL.LOSSES.NAME [CrossEntropyLoss, CircleLoss]",
    "Cosface": "MODEL.LOSSES.NAME [CrossEntropyLoss, Cosface]",
    "FocalLoss": "MODEL.LOSSES.NAME [FocalLoss, TripletLoss]",
    "smoothing": "MODEL.LOSSES.CE.EPSILON 0.1",
    "a margin of TripletLoss": "MODEL.LOSSES.TRI.MARGIN 0.3",
    "OrthogonalLoss": "MODEL.LOSSES.NAME [CrossEntropyLoss, OrthogonalLoss]",
    "AttributeLoss": "MODEL.LOSSES.NAME [CrossEntropyLoss, AttributeLoss]",
}
SAMPLERS = ("TrainingSampler", "NaiveIdentitySampler", "BalancedIdentitySampler", "ImbalancedDatasetSampler")
AUGMENTATIONS = {
    "PLRM": "INPUT.PIPELINE [host, PLRM]",
    "random erasing": "INPUT.REA.ENABLED True; INPUT.REA.PROB 1.0",
    "AutoAugment": "INPUT.AUTOAUG.ENABLED True; INPUT.AUTOAUG.PROB 1.0",
    "AugMix": "INPUT.AUGMIX.ENABLED True; INPUT.AUGMIX.PROB 1.0",
    "color jitter": "INPUT.CJ.ENABLED True; INPUT.CJ.PROB 1.0",
    "affine transforms": "INPUT.AFFINE.ENABLED True",
    "PatchShuffle": "INPUT.PIPELINE [host, PatchShuffle]",
}
TRAINING = {
    "SGD": "SOLVER.OPT SGD",
    "mixed precision": "SOLVER.AMP.ENABLED True; SOLVER.AMP.ON_CPU True",
    "clipped gradients": "SOLVER.CLIP_GRADIENTS.ENABLED True; SOLVER.CLIP_GRADIENTS.CLIP_VALUE 0.0001",
    "a frozen backbone": "MODEL.FREEZE_LAYERS [backbone]; SOLVER.FREEZE_ITERS 100",
    "rates by module": "SOLVER.LR_FACTORS [[heads, 0.0]]",
    "gradient cache": "SOLVER.CACHED_CHUNK 4",
}
ARCHITECTURES = {
    "MGN": "MODEL.META_ARCHITECTURE MGN; MODEL.BACKBONE.DEPTH 50x; MODEL.HEADS.EMBEDDING_DIM 32; "
    "INPUT.SIZE_TRAIN [96, 48]; INPUT.SIZE_TEST [96, 48]",
    "MGN on images of 64x32": "MODEL.META_ARCHITECTURE MGN; MODEL.BACKBONE.DEPTH 50x; MODEL.HEADS.EMBEDDING_DIM 32",
    "MoCo": "MODEL.META_ARCHITECTURE MoCo",
    "Distiller": "MODEL.META_ARCHITECTURE Distiller; KD.EMA.ENABLED True",
}
ITS_OWN_SIZE = ("INPUT.SIZE_TRAIN", "[128, 64]", "INPUT.SIZE_TEST", "[128, 64]")
METHODS = ("VDT", "ViSA", "SVPR-ReID", "VIF-AGReID", "CLIP-ReID", "TAG-CLIP", "TBPS-CLIP")
SMALLER = {
    "ViSA": "MODEL.VISA.NEIGHBORS 4; MODEL.VISA.TOKENS 2",
    "CLIP-ReID": "MODEL.CLIP_REID.STAGE1.EPOCHS 1; MODEL.CLIP_REID.STAGE1.WARMUP_EPOCHS 0; "
    "MODEL.CLIP_REID.STAGE1.BATCH 8",
}
IN_METHODS = {
    "EmbeddingHead": "MODEL.HEADS.NAME EmbeddingHead; MODEL.HEADS.WITH_BNNECK True; "
    "MODEL.HEADS.CLS_LAYER CircleSoftmax",
    "CircleLoss": "MODEL.LOSSES.NAME [CrossEntropyLoss, CircleLoss]",
    "PLRM": "INPUT.PIPELINE [host, PLRM]",
}
NETWORKS_IN_METHODS = {
    "ResNet-18": "MODEL.BACKBONE.NAME build_resnet_backbone; MODEL.BACKBONE.DEPTH 18x; MODEL.BACKBONE.FEAT_DIM 0",
    "timm's ConvNeXt": "MODEL.BACKBONE.NAME build_timm_backbone; MODEL.BACKBONE.EXTERNAL.NAME convnext_atto; "
    "MODEL.BACKBONE.EXTERNAL.OUTPUT map; MODEL.BACKBONE.STRIDE_SIZE [16, 16]; MODEL.BACKBONE.FEAT_DIM 0",
    "timm's ViT": "MODEL.BACKBONE.NAME build_timm_backbone; MODEL.BACKBONE.EXTERNAL.NAME vit_tiny_patch16_224; "
    'MODEL.BACKBONE.EXTERNAL.OPTIONS ["img_size=(64, 32)"]; MODEL.BACKBONE.FEAT_DIM 0',
}


def fastreid_rows() -> Iterator[Row]:
    """Yield the rows of fast-reid."""
    yield Row(PLAIN, "networks", VIT)
    yield Row(RESNET, "networks", VIT, (), PLAIN, RESNET_KEYS)
    for name, text in NETWORKS.items():
        yield _baseline(f"{name} in Baseline, with VIAL", "networks", f"{text}; MODEL.LOSSES.NAME {ALL_LOSSES}")
    for name, (library, network, output) in EXTERNAL.items():
        text = f"MODEL.BACKBONE.NAME build_{library}_backbone; MODEL.BACKBONE.EXTERNAL.NAME {network}; "
        text += f"MODEL.BACKBONE.EXTERNAL.OUTPUT {output}; MODEL.BACKBONE.EXTERNAL.OPTIONS {OPTIONS.get(name, '[]')}"
        yield _baseline(f"{name} in Baseline", "networks", text)
    for name, text in HEADS.items():
        yield _baseline(f"{name} in Baseline", "heads", text)
    for name in POOLINGS:
        yield _baseline(f"{name} in Baseline", "poolings", f"MODEL.HEADS.POOL_LAYER {name}")
    for name, text in LOSSES.items():
        yield _baseline(f"{name} in Baseline", "losses", text)
    for name in SAMPLERS:
        yield _baseline(f"{name} in Baseline", "samplers", f"DATALOADER.SAMPLER_TRAIN {name}")
    weights = f"DATALOADER.SAMPLER_TRAIN SetReWeightSampler; DATALOADER.SET_WEIGHT {[1] * 13}; "
    weights += "DATALOADER.NUM_INSTANCE 2; SOLVER.IMS_PER_BATCH 26"
    yield _baseline("SetReWeightSampler in Baseline", "samplers", weights)
    for name, text in AUGMENTATIONS.items():
        yield _baseline(f"{name} in Baseline", "augmentations", text)
    for name, text in TRAINING.items():
        yield _baseline(f"{name} in Baseline", "training", text)
    for name, text in ARCHITECTURES.items():
        yield _baseline(name, "architectures", text)
        yield _baseline(f"VIAL in {name}", "architectures", f"{text}; MODEL.LOSSES.NAME {ALL_LOSSES}", name)
    yield from method_rows()


def method_rows() -> Iterator[Row]:
    """Yield the rows of our methods in fast-reid, and those of the mixed recipes."""
    for name in METHODS:
        smaller = _keys(SMALLER[name]) if name in SMALLER else ()
        yield Row(name, "methods", f"projects/{name}/agsynth.yml", smaller, PLAIN)
    cached = _keys("SOLVER.CACHED_CHUNK 4")
    yield Row("gradient cache in TAG-CLIP", "methods", "projects/TAG-CLIP/agsynth.yml", cached, "TAG-CLIP")
    visa = _keys(SMALLER["ViSA"])
    for name, text in IN_METHODS.items():
        yield Row(f"{name} in ViSA", "methods", "projects/ViSA/agsynth.yml", (*visa, *_keys(text)), "ViSA")
        yield Row(f"{name} in VDT", "methods", "projects/VDT/agsynth.yml", _keys(text), "VDT")
        yield Row(f"{name} in SVPR-ReID", "methods", "projects/SVPR-ReID/agsynth.yml", _keys(text), "SVPR-ReID")
    for name, text in NETWORKS_IN_METHODS.items():
        yield Row(f"ViSA on {name}", "methods", "projects/ViSA/agsynth.yml", (*visa, *_keys(text)), "ViSA")
        experts = _keys(f"{text}; MODEL.VISA.VAB False; MODEL.VISA.NEIGHBORS 2; MODEL.VISA.TOKENS 2")
        yield Row(f"ViSA's experts and graphs on {name}", "methods", "projects/ViSA/agsynth.yml", experts, "ViSA")
        yield Row(f"VDT on {name}", "methods", "projects/VDT/agsynth.yml", _keys(text), "VDT")
        yield Row(f"VIF-AGReID on {name}", "methods", "projects/VIF-AGReID/agsynth.yml", _keys(text), "VIF-AGReID")
    for path in sorted((ROOT / "projects" / "Mixed").glob("*.yml")):
        group = "recipes of projects/Mixed"
        yield Row(f"recipe {path.stem}", group, str(path.relative_to(ROOT)), (), PLAIN, ITS_OWN_SIZE)


VIF = """
model = dict(type="agreid_plugin.VIF", num_ids=4, width={width}, backbone={network}, vial_weight={vial})
"""
THEIRS = 'default_scope = "mmpretrain"\n'
CLASSIFIER = """
model = dict(
    type="mmpretrain.ImageClassifier",
    backbone={network},
    neck={neck},
    head={head},
    data_preprocessor=dict(type="agreid_plugin.ReIDPreprocessor"),
)
"""
RETRIEVER = """
model = dict(
    type="mmpretrain.ImageToImageRetriever",
    image_encoder=[{network}, dict(type="mmpretrain.GlobalAveragePooling")],
    head={head},
    prototype=test_dataloader,
    data_preprocessor=dict(type="agreid_plugin.ReIDPreprocessor"),
)
"""
OUR_VIT = "dict(image_size=size, patch_size=16, width=32, depth=2, heads=2)"
THEIR_RESNET = 'dict(type="mmpretrain.ResNet", depth=18)'
POOL = 'dict(type="mmpretrain.GlobalAveragePooling")'
LINEAR = 'dict(type="mmpretrain.LinearClsHead", in_channels={width}, num_classes=4{loss})'
OURS_IN_MMENGINE = {
    "VDT": f'backbone=dict(type="agreid_plugin.VDTBackbone", vit={OUR_VIT})',
    "ViSA": f'backbone=dict(type="agreid_plugin.ViSABackbone", vit={OUR_VIT}, experts=2, tokens=2, neighbors=4)',
    "VIF": f'backbone=dict(type="agreid_plugin.ViTBackbone", vit={OUR_VIT})',
}
THEIR_NETWORKS = {
    "mmpretrain's ResNet": (512, THEIR_RESNET),
    "mmpretrain's MobileNetV2": (1280, 'dict(type="mmpretrain.MobileNetV2")'),
    "mmpretrain's ShuffleNetV2": (1024, 'dict(type="mmpretrain.ShuffleNetV2")'),
    "mmpretrain's VisionTransformer": (
        192,
        'dict(type="mmpretrain.VisionTransformer", arch="deit-tiny", img_size=size, patch_size=16)',
    ),
    "mmpretrain's Swin": (
        96,
        'dict(type="mmpretrain.SwinTransformer", img_size=size, window_size=2, out_indices=(1,), '
        "arch=dict(embed_dims=48, depths=[2, 2], num_heads=[2, 4]))",
    ),
    "timm's ConvNeXt": (320, 'dict(type="mmpretrain.TIMMBackbone", model_name="convnext_atto", features_only=True)'),
}
THEIR_HEADS = {
    "IdentityLoss": LINEAR.format(width=512, loss=', loss=dict(type="agreid_plugin.IdentityLoss", smoothing=0.1)'),
    "VIAL as the only loss": LINEAR.format(width=512, loss=', loss=dict(type="agreid_plugin.VIAL")'),
    "ReIDHead": 'dict(type="agreid_plugin.ReIDHead", in_channels=512, num_classes=4)',
    "ReIDHead with VIAL": 'dict(type="agreid_plugin.ReIDHead", in_channels=512, num_classes=4, '
    'objectives=dict(vial=dict(type="agreid_plugin.VIAL"), cls=dict(type="agreid_plugin.IdentityLoss")))',
    "mmpretrain's ArcFaceClsHead": 'dict(type="mmpretrain.ArcFaceClsHead", in_channels=512, num_classes=4)',
}
TRAINED = {
    "PLRM": 'train_dataloader["dataset"]["pipeline"].insert(-1, dict(type="agreid_plugin.PLRM", p_img=1.0))',
    "random erasing": 'train_dataloader["dataset"]["pipeline"].insert(-1, dict(type="agreid_plugin.RandomErasing"))',
    "DefaultSampler": 'train_dataloader["sampler"] = dict(type="DefaultSampler", shuffle=True)',
    "SGD": 'optim_wrapper["optimizer"] = dict(type="SGD", lr=0.05)',
    "accumulated gradients": 'optim_wrapper["accumulative_counts"] = 2',
    "clipped gradients": 'optim_wrapper["clip_grad"] = dict(max_norm=0.001)',
}


def mmengine_rows() -> Iterator[Row]:
    """Yield the rows of mmengine."""
    plain, classifier, group = "VIF without VIAL (mmengine)", "ResNet in ImageClassifier", "mmengine: methods"
    network = f'dict(type="agreid_plugin.ViTBackbone", vit={OUR_VIT})'
    base = VIF.format(width="None", network=network, vial=0)
    yield Row(plain, group, base)
    for name, options in OURS_IN_MMENGINE.items():
        yield Row(
            f"{name} (mmengine)", group, f'model = dict(type="agreid_plugin.{name}", num_ids=4, {options})\n', (), plain
        )
    for name, (width, network) in THEIR_NETWORKS.items():
        yield Row(f"{name} in VIF", group, VIF.format(width=width, network=network, vial=1), (), "VIF (mmengine)")
    vit = THEIR_NETWORKS["mmpretrain's VisionTransformer"][1]
    for name, more in (("ViSA", ", experts=2, tokens=2, neighbors=4"), ("VDT", "")):
        text = f'backbone=dict(type="agreid_plugin.{name}Backbone", vit={vit}{more})'
        text = f'model = dict(type="agreid_plugin.{name}", num_ids=4, {text})\n'
        yield Row(f"{name} on mmpretrain's VisionTransformer", group, text, (), f"{name} (mmengine)")
    for name, line in TRAINED.items():
        yield Row(f"{name} in VIF (mmengine)", "mmengine: training", f"{base}{line}\n", (), plain)
    head, group = LINEAR.format(width=512, loss=""), "mmengine: mmpretrain's models"
    yield Row(classifier, group, THEIRS + CLASSIFIER.format(network=THEIR_RESNET, neck=POOL, head=head))
    ours = f'dict(type="agreid_plugin.ViTBackbone", vit={OUR_VIT})'
    text = CLASSIFIER.format(network=ours, neck="None", head=LINEAR.format(width=32, loss=""))
    yield Row("our ViT in ImageClassifier", group, THEIRS + text, (), classifier)
    for name, head in THEIR_HEADS.items():
        text = CLASSIFIER.format(network=THEIR_RESNET, neck=POOL, head=head)
        yield Row(f"{name} in ImageClassifier", group, THEIRS + text, (), classifier)
        text = RETRIEVER.format(network=THEIR_RESNET, head=head)
        yield Row(f"{name} in ImageToImageRetriever", group, THEIRS + text, (), classifier)


MMENGINE = """
default_scope = "agreid_plugin"
randomness = dict(seed=1)
size = {size}
images = [
    dict(type="agreid_plugin.ReadImage"),
    dict(type="agreid_plugin.Resize", size=size),
    dict(type="agreid_plugin.Pack"),
]
loader = dict(num_workers=0, persistent_workers=False, collate_fn=dict(type="pseudo_collate"))
files = dict(type="agreid_plugin.ReIDDataset", name="CARGO", data_root={root!r}, agsynth={agsynth})
train_dataloader = dict(
    **loader,
    batch_size=16,
    dataset=dict(**files, pipeline=list(images)),
    sampler=dict(type="agreid_plugin.ViewBalancedIdentitySampler", batch_size=16, per_identity=4),
)
test_dataloader = dict(
    **loader,
    batch_size=64,
    dataset=dict(**files, split="test", pipeline=images),
    sampler=dict(type="DefaultSampler", shuffle=False),
)
val_dataloader = test_dataloader
test_evaluator = val_evaluator = dict(type="agreid_plugin.MultiProtocolMetric")
test_cfg = val_cfg = dict()
train_cfg = dict(by_epoch=True, max_epochs=2, val_interval=2)
optim_wrapper = dict(type="OptimWrapper", optimizer=dict(type="AdamW", lr=1e-3, weight_decay=0.05))
default_hooks = dict(logger=dict(type="LoggerHook", interval=1), checkpoint=dict(type="CheckpointHook", interval=-1))
hooks = ("LearningGuard", "IdentityCheck", "RunCard", "Results", "ExactResume", "SyncBuffers")
custom_hooks = [dict(type=f"agreid_plugin.{{name}}") for name in hooks]
"""
"""What every row of mmengine begins with."""
FASTREID = (
    *("MODEL.DEVICE", "cpu", "SEED", "1", "DATASETS.AGSYNTH.IDS", "8", "DATASETS.AGSYNTH.IMAGES_PER_ID", "8"),
    *("DATASETS.AGSYNTH.SIZE", "[64, 32]", "INPUT.SIZE_TRAIN", "[64, 32]", "INPUT.SIZE_TEST", "[64, 32]"),
    *("DATALOADER.NUM_WORKERS", "0", "SOLVER.IMS_PER_BATCH", "16", "SOLVER.MAX_EPOCH", "2", "SOLVER.WARMUP_ITERS", "0"),
    *("SOLVER.LOG_PERIOD", "1", "MODEL.BACKBONE.PRETRAIN", "False"),
)
"""What every row of fast-reid has in its base."""


def list_rows() -> list[Row]:
    """Return all rows, each behind the one that it is compared with."""
    return [*fastreid_rows(), *mmengine_rows()]
