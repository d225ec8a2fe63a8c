"""AG-Synth on disk: pictures of a plan rendered in parallel and written as a known dataset, and a contact sheet."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from tqdm import tqdm

from agreid_plugin.data.datasets.locations import AGSYNTH_FILE
from agreid_plugin.errors import InputError, require_known
from agreid_plugin.synth.captions import two_captions
from agreid_plugin.synth.plan import CAPTION, MIN_IDS, PREVIEW, SHOT, Frame, plan, random_stream
from agreid_plugin.synth.render import Picture, Shot, render
from agreid_plugin.synth.sensor import encode
from agreid_plugin.synth.worlds import DEFAULT_WORLD, World, get_world
from agreid_plugin.synth.writers import LAYOUTS_BY_NAME, Layout, WrittenPicture

LAYOUTS: tuple[str, ...] = tuple(LAYOUTS_BY_NAME)
"""The datasets whose arrangement of files AG-Synth can take."""

MIN_SIZE = (32, 16)  # height, width
LABEL = 44  # pixels above the pictures
GAP = 4
NIGHTS = 0.15  # share of pictures taken by night
_PAPER, _INK = (250, 250, 248), (40, 40, 44)


def make_agsynth(
    root: str | Path,
    *,
    ids: int = 200,
    images_per_id: int = 12,
    size: tuple[int, int] = (256, 128),
    layout: str = "cargo",
    seed: int = 0,
    world: str = DEFAULT_WORLD,
    workers: int | None = None,
    overwrite: bool = False,
    progress: bool = True,
) -> Path:
    """Write the synthetic dataset AG-Synth; the same arguments give the same bytes, whatever `workers` is.

    Args:
        root: the folder of datasets; the dataset gets its layout's folder in it, such as `CARGO`.
        ids: people, half to train on and half to test with.
        images_per_id: pictures of each, half of them from the air.
        size: height and width in pixels.
        layout: one of `LAYOUTS`.
        seed: another seed, other people and pictures.
        world: `easy`, or `gap`, where sky and street differ and people look alike.
        workers: processes; by default one a core.
        overwrite: replace the dataset's folder if it is there. The old one stays until the new one is complete.
        progress: show a bar.

    Returns:
        The dataset's folder.
    """
    chosen, sample_person = (
        LAYOUTS_BY_NAME[require_known("layout", layout, LAYOUTS_BY_NAME)],
        get_world(world).sample_person,
    )
    _check(chosen, layout, ids, images_per_id, size, seed, workers)
    target = Path(root).expanduser() / chosen.folder
    _check_target(target, overwrite)
    frames = plan(seed, ids, images_per_id)
    with _draft(target) as draft:
        described = chosen.annotate is not None
        jobs = [_Job(world, seed, frame, size, str(draft / chosen.place(frame)), described) for frame in frames]
        for folder in sorted({os.path.dirname(job.path) for job in jobs}):
            os.makedirs(folder, exist_ok=True)
        taken = list(tqdm(_run(jobs, workers), total=len(jobs), desc=chosen.folder, unit="img", disable=not progress))
        if chosen.annotate:
            chosen.annotate(draft, taken, {pid: sample_person(seed, pid) for pid in range(1, ids + 1)})
        made = {"ids": ids, "images_per_id": images_per_id, "size": list(size), "layout": layout, "seed": seed}
        made["world"] = world
        (draft / AGSYNTH_FILE).write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    return target


def get_folder(layout: str) -> str:
    """Return the name of a layout's folder."""
    return LAYOUTS_BY_NAME[layout].folder


def _check(
    chosen: Layout, layout: str, ids: int, images: int, size: tuple[int, int], seed: int, workers: int | None
) -> None:
    if ids < MIN_IDS:
        raise InputError(f"ids is {ids}; a train and a test half need at least {MIN_IDS}")
    if images < chosen.least_images:
        raise InputError(
            f"images_per_id is {images}; layout {layout} needs at least {chosen.least_images} "
            "for a query and a gallery in every view"
        )
    if len(size) != 2 or size[0] < MIN_SIZE[0] or size[1] < MIN_SIZE[1]:
        raise InputError(f"size is {tuple(size)}; give (height, width) of at least {MIN_SIZE}")
    if seed < 0:
        raise InputError(f"seed is {seed}; give 0 or more")
    if workers is not None and workers < 1:
        raise InputError(f"workers is {workers}; give at least 1")


def _check_target(target: Path, overwrite: bool) -> None:
    if target.exists() and not target.is_dir():
        raise InputError(f"{target} is a file; the dataset needs a folder there, move the file away")
    if target.is_dir() and any(target.iterdir()) and not overwrite:
        raise InputError(f"{target} is not empty; choose another root, or overwrite to replace this folder")


@contextmanager
def _draft(target: Path) -> Iterator[Path]:
    """Yield a folder beside `target` to write to; it replaces the target only without errors."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", suffix="-unfinished", dir=target.parent))
    try:
        yield draft
        draft.chmod(0o755)  # temporary folders are for their owner only, datasets are not
        _replace(target, draft)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _replace(target: Path, draft: Path) -> None:
    if not target.exists():
        draft.rename(target)
        return
    old = draft.with_name(draft.name.removesuffix("-unfinished") + "-old")
    target.rename(old)
    draft.rename(target)
    if old.is_symlink():
        old.unlink()
    else:
        shutil.rmtree(old)


@dataclass(frozen=True)
class _Job:
    world: str
    seed: int
    frame: Frame
    size: tuple[int, int]
    path: str
    described: bool


def render_frame(world: World, seed: int, frame: Frame, size: tuple[int, int]) -> tuple[Shot, Picture]:
    """Draw and render one picture of the plan."""
    stream = random_stream(seed, SHOT, frame.pid, frame.index)
    shot = world.draw_shot(stream, world.cameras[frame.camera - 1], frame.night)
    return shot, render(world.sample_person(seed, frame.pid), shot, size)


def _render_job(job: _Job) -> WrittenPicture:
    """Render a picture, write it, and caption it if its layout has captions."""
    frame, world = job.frame, get_world(job.world)
    shot, picture = render_frame(world, job.seed, frame, job.size)
    Path(job.path).write_bytes(encode(picture.image))
    captions = ("", "")
    if job.described:
        words = random_stream(job.seed, CAPTION, frame.pid, frame.index)
        attributes = world.sample_person(job.seed, frame.pid).attributes
        captions = two_captions(attributes, picture.seen, shot.pose.walking, words)
    return WrittenPicture(frame, captions, "Walking" if shot.pose.walking else "Standing", shot.pose.facing)


def _run(jobs: list[_Job], workers: int | None) -> Iterator[WrittenPicture]:
    """Do the jobs and give their results in order."""
    workers = min(workers or _cores(), len(jobs))
    if workers == 1:
        yield from map(_render_job, jobs)
        return
    # A fork starts at once and needs no guard in the caller's script; macOS libraries do not survive one.
    fork = sys.platform != "darwin" and "fork" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if fork else "spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_ignore_interrupts)
    try:
        yield from pool.map(_render_job, jobs, chunksize=max(1, min(16, len(jobs) // (4 * workers))))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _ignore_interrupts() -> None:
    """Leave an interrupt to the parent, which ends the workers itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def contact_sheet(
    path: str | Path,
    *,
    ids: int = 8,
    size: tuple[int, int] = (256, 128),
    seed: int = 0,
    world: str = DEFAULT_WORLD,
    progress: bool = False,
) -> Path:
    """Draw people by cameras, a row a person, and save it as PNG.

    Args:
        path: the file to write.
        ids: rows.
        size: height and width of each picture.
        seed: as of `make_agsynth`: the same seed has the same people.
        world: as of `make_agsynth`.
        progress: show a bar.

    Returns:
        The file.
    """
    if ids < 1:
        raise InputError(f"ids is {ids}; a sheet needs at least 1 row")
    path = Path(path).expanduser()
    if path.suffix.lower() != ".png":
        raise InputError(f"{path}: a contact sheet is a PNG file, end its name with .png")
    (height, width), drawn = size, get_world(world)
    sheet = Image.new("RGB", (len(drawn.cameras) * (width + GAP) + GAP, LABEL + ids * (height + GAP)), _PAPER)
    for row in tqdm(range(ids), desc="contact sheet", unit="id", disable=not progress):
        for column, frame in enumerate(_preview_frames(drawn, seed, row + 1)):
            image = Image.fromarray(render_frame(drawn, seed, frame, size)[1].image)
            sheet.paste(image, (GAP + column * (width + GAP), LABEL + row * (height + GAP)))
    _label_columns(sheet, drawn, width)
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path)
    return path


def _preview_frames(world: World, seed: int, pid: int) -> list[Frame]:
    nights = random_stream(seed, PREVIEW, pid).random(len(world.cameras)) < NIGHTS
    return [
        Frame(pid, camera.number, camera.number, bool(night), "query")
        for camera, night in zip(world.cameras, nights, strict=True)
    ]


def _label_columns(sheet: Image.Image, world: World, width: int) -> None:
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=max(9, min(15, width // 8)))
    for column, each in enumerate(world.cameras):
        where = f"{np.mean(each.altitude):.0f} m" if each.aerial else f"{np.mean(each.altitude):.1f} m"
        text = f"Cam{each.number} {each.platform}\n{where} high"
        draw.text((GAP + column * (width + GAP) + 2, 4), text, fill=_INK, font=font)
