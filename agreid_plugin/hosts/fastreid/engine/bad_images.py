"""Training images that could not be read, told at the end of a run."""

from __future__ import annotations

import logging

from fastreid.engine import hooks
from fastreid.utils import comm

from agreid_plugin.data.bad_images import BadImages, tell_bad_images

_logger = logging.getLogger("fastreid.data")


class BadImageList(hooks.HookBase):
    """Lists the training images that all processes passed over (`DATASETS.BAD_IMAGES: skip`) after the last epoch.

    Args:
        bad_images: those of this process.
        folder: the run's.
    """

    def __init__(self, bad_images: BadImages, folder: str):
        self._bad_images, self._folder = bad_images, folder

    def after_epoch(self) -> None:
        """Write the list."""
        if self.trainer.epoch + 1 == self.trainer.max_epoch:
            paths = {path for part in comm.all_gather(self._bad_images.paths()) for path in part}
            if comm.is_main_process():
                tell_bad_images(self._folder, paths, "training", _logger)
