"""Search in a folder of images by sentences: a model of the host makes the features, once for each image."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from fastreid.modeling.meta_arch import META_ARCH_REGISTRY
from torch import nn

from agreid_plugin import __version__
from agreid_plugin.data.captions import clean
from agreid_plugin.data.datasets.files import existing, list_images
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.feature_cache import FeatureCache
from agreid_plugin.evaluation.search import Answer, answers
from agreid_plugin.hosts.fastreid import checks
from agreid_plugin.hosts.fastreid.clip import with_activation
from agreid_plugin.hosts.fastreid.config import load_config
from agreid_plugin.hosts.fastreid.gallery import extract, predicts_views
from agreid_plugin.hosts.fastreid.text_data import Tokenizer, reads_captions
from agreid_plugin.hosts.fastreid.trainer import Trainer
from agreid_plugin.hosts.fastreid.weights import CLASSIFIERS, load_weights
from agreid_plugin.types import View

TELLS_VIEWS = "TAGCLIP with MODEL.TAG_CLIP.BLOCK hr_moe and VIEW_LOSS True"
ONE_TOKEN = 3  # start and end of a sentence stand around it
IRRELEVANT = ("WEIGHTS", "DEVICE", "LOSSES")
"""Keys of MODEL that change no feature, or that the content of the weight file stands for."""


def search_text(
    config: str | Path,
    weights: str | Path | None,
    gallery: str | Path,
    sentences: Sequence[str],
    *,
    overrides: Iterable[str] = (),
    top: int = 10,
    view: View | None = None,
    cache: str | Path | None = None,
    skip_bad_images: bool = False,
    tell: Callable[[str], None],
) -> list[Answer]:
    """Find the images of a folder that sentences describe best.

    Args:
        config: the configuration file of a model that reads sentences.
        weights: its checkpoint; None takes `MODEL.WEIGHTS`.
        gallery: the folder; images at any depth count.
        sentences: what is looked for, one answer each.
        overrides: `KEY VALUE ...` on top of the configuration.
        top: images of each answer.
        view: keep the images that the model takes for this view.
        cache: the file that keeps the features of the images; see `FeatureCache`.
        skip_bad_images: leave out images that cannot be read, instead of refusing them.
        tell: called with lines that somebody should read.

    Raises:
        InputError: something that was asked for cannot be done; see its line.
    """
    cfg = _configured(config, weights, overrides)
    cleaned = [_cleaned(sentence) for sentence in sentences]
    if view is not None and not predicts_views(cfg):
        raise InputError(f"--view needs a model that learned to tell views: {TELLS_VIEWS}")
    paths = _images(gallery)
    store = FeatureCache(cache, maker_of(cfg) if cache else "")
    if store.outdated:
        tell(f"{cache} is of other weights or another configuration: made anew")
    model = load_model(cfg)
    images = extract(cfg, model, paths, store, skip_bad_images, tell)
    found = images if view is None else images.of_view(view)
    notes = [_notes(Tokenizer(cfg.MODEL.CLIP.TEXT_LENGTH), text) for text in cleaned]
    results = answers(found, sentences, embed_texts(cfg, model, cleaned), top)
    return [replace(answer, notes=said) for answer, said in zip(results, notes, strict=True)]


def _configured(config: str | Path, weights: str | Path | None, overrides: Iterable[str]):
    cfg = load_config(config, overrides)
    cfg.MODEL.BACKBONE.PRETRAIN = False  # the checkpoint has it all
    cfg.MODEL.WEIGHTS = str(weights or cfg.MODEL.WEIGHTS)
    cfg.MODEL.HEADS.NUM_CLASSES = 1  # the classifier is not used
    if cfg.MODEL.DEVICE.startswith("cuda") and not torch.cuda.is_available():
        cfg.MODEL.DEVICE = "cpu"
    checks.check_config(cfg)
    if not reads_captions(cfg):
        readers = [
            name
            for name, kind in META_ARCH_REGISTRY._obj_map.items()
            if "tokens" in getattr(kind, "inference_inputs", ())
        ]
        raise InputError(f"{cfg.MODEL.META_ARCHITECTURE} reads no sentences; {', '.join(readers)} does")
    if not Path(cfg.MODEL.WEIGHTS).is_file():
        raise InputError(f"weight file {cfg.MODEL.WEIGHTS!r} does not exist; name it with --weights")
    return with_activation(cfg)


def _cleaned(sentence: str) -> str:
    """Return a sentence as the model learned to read them."""
    words = clean(sentence)
    if not any(letter.isalnum() for letter in words):
        raise InputError(f"the sentence {sentence!r} has no words: describe a person")
    return words


def _images(folder: str | Path) -> list[str]:
    folder = existing(folder)
    paths = [str(path) for path in list_images(folder)] if folder.is_dir() else []
    if not paths:
        raise InputError(f"{folder} {'has no images in it' if folder.is_dir() else 'is no folder'}: name one of images")
    return paths


def maker_of(cfg) -> str:
    """Return what tells features of the same weights, model and test images from others."""
    model = {key: value for key, value in cfg.MODEL.items() if key not in IRRELEVANT}
    settings = json.dumps([__version__, model, cfg.INPUT, cfg.TEST.FLIP.ENABLED], sort_keys=True, default=str)
    digest = hashlib.sha256(settings.encode())
    with Path(cfg.MODEL.WEIGHTS).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def load_model(cfg) -> nn.Module:
    """Build the model of a configuration with the weights of its checkpoint, all of them."""
    model, path = Trainer.build_model(cfg), cfg.MODEL.WEIGHTS
    missing = [name for name in load_weights(model, path) if not name.endswith(CLASSIFIERS)]
    if missing:
        raise InputError(
            f"{path} has nothing for {len(missing)} of the model's tensors ({missing[0]}, ...): it was made for "
            "another configuration"
        )
    return model.eval()


@torch.no_grad()
def embed_texts(cfg, model: nn.Module, sentences: Sequence[str]) -> np.ndarray:
    """Return the features of sentences: (Q, D)."""
    tokenize, device = Tokenizer(cfg.MODEL.CLIP.TEXT_LENGTH), torch.device(cfg.MODEL.DEVICE)
    tokens = torch.stack([tokenize(sentence) for sentence in sentences])
    none = torch.empty(0, 3, 1, 1, device=device)
    parts = [model({"tokens": part.to(device), "images": none}) for part in tokens.split(cfg.TEST.IMS_PER_BATCH)]
    return torch.cat(parts).float().cpu().numpy()


def _notes(tokenize: Tokenizer, sentence: str) -> tuple[str, ...]:
    """Say what keeps a cleaned sentence from being understood."""
    notes = []
    if tokenize.is_long(sentence):
        notes.append(f"the sentence has more than {tokenize.length} tokens: its end was not read")
    words = [word for word in sentence.replace(",", " ").split() if len(word) > 1]
    if not any(int((tokenize(word) != 0).sum()) == ONE_TOKEN for word in words):
        notes.append("the sentence has no word that CLIP knows, which is trained on English: expect nothing of it")
    return tuple(notes)
