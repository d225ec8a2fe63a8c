"""Images that cannot be read, with data workers and without."""

import logging
import os
import signal

import pytest
from PIL import Image
from processes import in_processes
from torch.utils.data import DataLoader, Dataset

from agreid_plugin.data.bad_images import LIST_FILE, BadImages, Labels, log_bad_images
from agreid_plugin.data.images import ImageInputError, read_image
from agreid_plugin.data.workers import describe_crash, name_worker_crashes
from agreid_plugin.errors import InputError

PIDS, VIEWS = (7, 7, 7, 7, 8, 8), (0, 1, 0, 0, 0, 1)


class Pictures(Dataset):
    """Six pictures of two people; an item tells which picture was read."""

    def __init__(self, folder, policy: str = "error", any_identity: bool = False):
        self.paths = [folder / f"{place}.png" for place in range(len(PIDS))]
        for place, path in enumerate(self.paths):
            if not path.exists():
                Image.new("RGB", (8, 8), (place, 0, 0)).save(path)
        self.bad_images = BadImages(len(self), self._labels, policy, any_identity)

    def _labels(self, index: int) -> Labels:
        return Labels(str(self.paths[index]), PIDS[index], VIEWS[index])

    def __len__(self) -> int:
        return len(PIDS)

    def __getitem__(self, index: int) -> int:
        return self.bad_images.attempt(index, self.read)

    def read(self, index: int) -> int:
        return read_image(self.paths[index]).getpixel((0, 0))[0]


class Deadly(Pictures):
    """Reading the fourth picture kills the process that does it."""

    def read(self, index: int) -> int:
        if index == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(index)


def damage(folder, *places: int) -> None:
    for place in places:
        (folder / f"{place}.png").write_bytes(b"no picture")


@pytest.fixture
def folder(tmp_path):
    Pictures(tmp_path)
    return tmp_path


def test_a_bad_image_is_an_error_unless_it_is_to_be_passed_over(folder):
    damage(folder, 2)
    with pytest.raises(ImageInputError, match=r"2\.png cannot be read"):
        Pictures(folder)[2]
    with pytest.raises(InputError, match=r"policy for bad images 'skipp' unknown \(did you mean skip\?\)"):
        Pictures(folder, "skipp")


@pytest.mark.parametrize("workers", [0, 2])
def test_another_image_of_the_person_stands_in(folder, workers):
    damage(folder, 2, 4)
    pictures = Pictures(folder, "skip")
    read = [int(item) for item in DataLoader(pictures, batch_size=None, num_workers=workers)]
    assert read == [0, 1, 3, 3, 5, 5]  # behind it, of the same view if there is one
    assert pictures.bad_images.paths() == [str(folder / "2.png"), str(folder / "4.png")]


def test_the_same_view_comes_first_and_those_before_come_last(folder):
    damage(folder, 3)
    assert Pictures(folder, "skip")[3] == 0
    damage(folder, 0, 2)
    assert Pictures(folder, "skip")[3] == 1  # of the other view at last


def test_nobody_else_stands_in_but_where_nothing_is_made_of_it(folder):
    damage(folder, 4, 5)
    pictures = Pictures(folder, "skip")
    with pytest.raises(InputError, match=r"5\.png cannot be read, nor any that could stand in for it \(identity 8\)"):
        pictures[5]
    assert Pictures(folder, "skip", any_identity=True)[5] == 0


def test_a_file_that_is_gone_is_passed_over_too(folder):
    pictures = Pictures(folder, "skip")
    (folder / "0.png").unlink()
    assert pictures[0] == 2


def test_the_list_grows_and_names_each_once(tmp_path, caplog):
    logger = logging.getLogger("list")
    log_bad_images(tmp_path, [], "training", logger)
    assert not list(tmp_path.iterdir())
    log_bad_images(tmp_path, ["b.png", "a\n\udcff.png"], "training", logger)
    assert caplog.messages[-1].startswith(r"unreadable training images, passed over: 2, first a\n\udcff.png; ")
    log_bad_images(tmp_path, ["b.png", "c.png"], "CARGO test", logger)
    assert (tmp_path / LIST_FILE).read_text() == "a\\n\\udcff.png\nb.png\nc.png\n"
    listed = tmp_path / LIST_FILE
    assert caplog.messages[-1] == f"unreadable CARGO test images, passed over: 2, first b.png; all are in {listed}"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_dies_names_its_file(folder, workers):
    (told,) = in_processes(1, lambda: _read_all(Deadly(folder), workers), grouped=False)
    assert told.startswith("InputError: ")
    assert "(out of memory? use fewer data workers" in told
    assert told.endswith(f"the last file it worked on is {folder / '3.png'}")


def test_a_worker_whose_connection_is_lost_first_names_its_file(folder):
    (told,) = in_processes(1, lambda: _lose_connection(Deadly(folder)), grouped=False)
    assert told.startswith("InputError: a data worker")
    assert told.endswith(f"the last file it worked on is {folder / '3.png'}")


def _lose_connection(pictures: Pictures) -> str:
    """Fail as torch does where a worker dies while a batch is fetched, before it is told of the death."""
    with name_worker_crashes():
        batches = iter(DataLoader(pictures, batch_size=2, num_workers=1))
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        raise ConnectionResetError(f"of {batches}")
    return "nothing was raised"


def _read_all(pictures: Pictures, workers: int) -> str:
    with name_worker_crashes():
        return str(list(DataLoader(pictures, batch_size=2, num_workers=workers)))


def test_what_is_no_death_of_a_worker_stays_as_it_is():
    assert describe_crash(RuntimeError("boom")) is None
    with pytest.raises(RuntimeError, match="boom"), name_worker_crashes():
        raise RuntimeError("boom")
    (told,) = in_processes(1, _told, grouped=False)
    assert told == "a data worker (pid 1, 2) died: exited with 3; it had not taken up a file yet"


def _told() -> str:
    return str(describe_crash(RuntimeError("DataLoader worker (pid(s) 1, 2) exited with 3")))
