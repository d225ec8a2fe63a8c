"""The CLIP baseline and CLIP-ReID as meta-architectures of the host, and CLIP-ReID's first stage before its training.

Every process extracts its share of the training images and then learns the same prompts from all of them: one that
waited for another to learn them would be given up by its process group.

Shapes: n training images, I identities, K words of a prompt, D width of a word, E width of features.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from fastreid.engine.hooks import HookBase
from fastreid.evaluation import inference_context
from fastreid.modeling.meta_arch import META_ARCH_REGISTRY
from fastreid.utils import comm
from torch import Tensor
from tqdm import tqdm

from agreid_plugin.data.atomic_write import atomic_write
from agreid_plugin.engine.checkpoints import tolerate_full_disk
from agreid_plugin.errors import InputError, MissingInputError
from agreid_plugin.hosts.fastreid.config.loading import Key, declare, key_error_context
from agreid_plugin.hosts.fastreid.config.signatures import keys_from
from agreid_plugin.hosts.fastreid.data import loaders
from agreid_plugin.hosts.fastreid.engine.distributed import plain, share
from agreid_plugin.hosts.fastreid.models.backbones import build_clip_backbone, build_towers, require_clip_backbone
from agreid_plugin.hosts.fastreid.models.base import HostMethod, head_parts
from agreid_plugin.hosts.fastreid.models.losses import declare_architecture
from agreid_plugin.losses import IdentityLoss
from agreid_plugin.methods import clip_reid
from agreid_plugin.methods.clip_reid import PromptSchedule, learn_prompts
from agreid_plugin.nn.checkpoints import read_checkpoint
from agreid_plugin.types import Record

_logger = logging.getLogger("fastreid.prompts")

FILE_NAME = "prompts.pth"
LINES = 10  # of progress in the log
NODE = "MODEL.CLIP_REID.STAGE1"
KEYS = (
    Key("MODEL.CLIP_REID.I2T_WEIGHT", 1.0, "CLIP-ReID: weight of the loss of images and texts, smoothed as CE is."),
    Key(f"{NODE}.PROMPTS", "", "CLIP-ReID: prompts.pth of an earlier run on the same identities, instead of stage 1."),
    Key(f"{NODE}.EPOCHS", 120, "CLIP-ReID, stage 1: epochs that learn the prompts."),
    Key(f"{NODE}.BATCH", 64, "CLIP-ReID, stage 1: images a step, of all processes together."),
    Key(f"{NODE}.LR", 3.5e-4, "CLIP-ReID, stage 1: Adam's rate after warm-up."),
    Key(f"{NODE}.WEIGHT_DECAY", 1e-4, "CLIP-ReID, stage 1: weight decay of the prompts."),
    Key(f"{NODE}.WARMUP_EPOCHS", 5, "CLIP-ReID, stage 1: epochs of linear warm-up."),
    Key(f"{NODE}.WARMUP_LR", 1e-5, "CLIP-ReID, stage 1: rate that warm-up starts from."),
    Key(f"{NODE}.MIN_LR", 1e-6, "CLIP-ReID, stage 1: rate of the last epoch, which a cosine leads to."),
)
declare([*KEYS, *keys_from("MODEL.CLIP", clip_reid.CLIPBaseline, label="CLIPBaseline, CLIPReID")])
declare_architecture("CLIPReID", {"SupConLoss": ""})


@META_ARCH_REGISTRY.register()
class CLIPBaseline(HostMethod, clip_reid.CLIPBaseline):
    """CLIP's image tower with one head, built from a configuration."""

    group = "MODEL.CLIP"

    @classmethod
    def build_parts(cls, cfg) -> tuple[Any, ...]:
        """Return the image tower and head parts."""
        require_clip_backbone(cfg)
        return build_clip_backbone(cfg).core, *head_parts(cfg)


@META_ARCH_REGISTRY.register()
class CLIPReID(HostMethod, clip_reid.CLIPReID):
    """CLIP-ReID, built from a configuration; `PromptStage` runs its first stage."""

    group = "MODEL.CLIP"

    @classmethod
    def build_parts(cls, cfg) -> tuple[Any, ...]:
        """Return both towers, head parts, and the loss of images and texts."""
        require_clip_backbone(cfg)
        read_schedule(cfg)  # what is wrong with it is better known now than after the features are extracted
        towers, text_loss = build_towers(cfg), _build_text_loss(cfg)
        return towers.image, towers.text, *head_parts(cfg), text_loss

    @classmethod
    def training_hooks(cls, cfg) -> list[HookBase]:
        """Return the first stage."""
        return [PromptStage(cfg)]

    @classmethod
    def skip_stages(cls, model: clip_reid.CLIPReID) -> None:
        """Have texts of prompts as they were drawn."""
        model.keep_texts()

    @classmethod
    def weight_files(cls, cfg) -> dict[str, str]:
        """Return the prompts of an earlier run."""
        return {"prompts": cfg.MODEL.CLIP_REID.STAGE1.PROMPTS}

    def stage_features(self, inputs: dict[str, Any]) -> Tensor:
        """Return what the first stage learns from of a batch of the host's: (B, E)."""
        return self.image_features(self.normalized(inputs).images)


def _build_text_loss(cfg) -> IdentityLoss:
    """Build the cross-entropy of images and texts, which is smoothed and averaged as that of identities."""
    node = cfg.MODEL.LOSSES.CE
    smoothing = max(node.EPSILON, 0.0)  # below 0 it is the host's adaptive smoothing, which this loss has not
    with key_error_context("MODEL.CLIP_REID.I2T_WEIGHT"):
        return IdentityLoss(cfg.MODEL.CLIP_REID.I2T_WEIGHT, smoothing, node.OVER_NONZERO, node.OVER_ALL)


def read_schedule(cfg) -> PromptSchedule:
    """Return how the first stage learns."""
    node = cfg.MODEL.CLIP_REID.STAGE1
    with key_error_context(NODE):
        return PromptSchedule(
            epochs=node.EPOCHS,
            rate=node.LR,
            batch=node.BATCH,
            weight_decay=node.WEIGHT_DECAY,
            warmup_epochs=node.WARMUP_EPOCHS,
            warmup_rate=node.WARMUP_LR,
            min_rate=node.MIN_LR,
        )


class PromptStage(HookBase):
    """Learns the prompts before training, unless the model has texts from a resumed run or from its weights.

    They are written to prompts.pth in the output folder, from where another run may take them.
    """

    def __init__(self, cfg):
        self._cfg, self._stored = cfg, cfg.MODEL.CLIP_REID.STAGE1.PROMPTS

    def before_train(self) -> None:
        """Run the stage, or say why not."""
        method, train_set = plain(self.trainer.model), self.trainer.data_loader.dataset
        stored = self._stored
        if method.text_classifier.ready:
            _logger.info("stage 1 is not run: the loaded weights hold the texts of their identities")
        elif stored:
            method.prompts.copy_(read_prompts(stored, method, _list_names(train_set)))
            method.keep_texts()
            _logger.info("stage 1 is not run: prompts of %d identities from %s", len(method.prompts), stored)
        else:
            losses = self._learn(method, train_set)
            if comm.is_main_process():
                write_prompts(Path(self._cfg.OUTPUT_DIR) / FILE_NAME, method, _list_names(train_set), losses)

    def _learn(self, method: CLIPReID, train_set: loaders.ReIDDataset) -> list[float]:
        labels = torch.tensor([train_set.pid_dict[item[1]] for item in train_set.img_items])
        features = extract(self._cfg, method, train_set, labels)
        schedule = read_schedule(self._cfg)
        every = max(schedule.epochs // LINES, 1)
        share([method.prompts])
        bar = tqdm(total=schedule.epochs, desc="prompts", unit="epoch", leave=False, disable=_hide_bar())

        def report(epoch: int, loss: float) -> None:
            bar.set_postfix(loss=f"{loss:.4g}", refresh=False)
            bar.update()
            if epoch % every == 0 or epoch == schedule.epochs:
                _logger.info("stage 1, epoch %d/%d: prompt loss %.4g", epoch, schedule.epochs, loss)

        with bar:
            losses = learn_prompts(
                method, features, labels, schedule, self._cfg.SEED, report, half=self._cfg.SOLVER.AMP.ENABLED
            )
        share([method.prompts, method.text_classifier.weight])  # the same to the last bit, whatever the devices
        return losses


def extract(cfg, method: CLIPReID, train_set: loaders.ReIDDataset, labels: Tensor) -> Tensor:
    """Return the features of all training images, in order and without augmentation, on a CPU: (n, E)."""
    items = zip(train_set.img_items, labels.tolist(), strict=True)
    records = [Record(str(item[0]), label) for item, label in items]
    loader = loaders.build_test_loader(cfg, records, cfg.DATASETS.BAD_IMAGES)  # one of the same person stands in
    _logger.info("stage 1: features of %d images of %d identities", len(labels), train_set.num_classes)
    with inference_context(method):
        own = [method.stage_features(batch).float().cpu() for batch in loader]
    return torch.cat([part for of_process in comm.all_gather(own) for part in of_process])


def write_prompts(path: Path, method: CLIPReID, names: Sequence[str], losses: Sequence[float]) -> None:
    """Write the prompts with the identities they are of; the file is there as a whole or not at all.

    Training does without it, so a full disk is only logged.
    """
    model = {"prompts": method.prompts.cpu(), "text_features": method.text_classifier.weight.cpu()}
    with tolerate_full_disk(path, "but no other can take its prompts"):
        with atomic_write(path) as draft, draft.open("wb") as file:
            torch.save({"model": model, "identities": list(names), "losses": list(losses)}, file)
        _logger.info("prompts of %d identities in %s", len(names), path)


def read_prompts(path: str | Path, method: CLIPReID, names: Sequence[str]) -> Tensor:
    """Read the prompts of exactly these identities: (I, K, D)."""
    key = f"{NODE}.PROMPTS"
    if not os.path.isfile(path):
        raise MissingInputError(f"{key} {path} does not exist")
    content = read_checkpoint(path)
    prompts, identities = content["model"].get("prompts"), content.get("identities", ())
    if not isinstance(prompts, Tensor):
        raise InputError(f"{key} {path} holds no prompts: name the {FILE_NAME} of an earlier run")
    if list(identities) != list(names):
        raise InputError(f"{key} {path} is of {len(identities)} identities, not of the {len(names)} in DATASETS.NAMES")
    if prompts.shape != method.prompts.shape:
        raise InputError(
            f"{key} {path} has prompts of width {prompts.shape[-1]}, but the text tower's is {method.prompts.shape[-1]}"
        )
    return prompts


def _list_names(train_set: loaders.ReIDDataset) -> list[str]:
    return [str(pid) for pid in train_set.pids]


def _hide_bar() -> bool | None:
    return None if comm.is_main_process() else True  # None: a bar on terminals only
