"""Host fixes of mmengine for today's Python and torch, with or without a GPU; see `hosts.host_fixes`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import torch
import yaml

from agreid_plugin.data.files import PlainLoader
from agreid_plugin.hosts.host_fixes import HostFixes

warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated")  # mmengine's argument, which no user writes

HOST_FIXES = HostFixes()
NO_CUDA = (AttributeError, RuntimeError, AssertionError)
"""What `torch.cuda.set_device` raises without a GPU, by the build of torch."""


def replace(module: str, name: str, value: Any) -> None:
    """Set a name in the module that defines it and in those of its package that have imported it."""
    old = getattr(sys.modules[module], name)
    package = module.partition(".")[0]
    for found in [each for key, each in sys.modules.items() if key.partition(".")[0] == package]:
        if isinstance(found, ModuleType) and found.__dict__.get(name) is old:
            setattr(found, name, value)


# Names that are gone ---------------------------------------------------------------------------------------------

PACKAGES = "mmengine.utils.package_utils"


def _asks_pkg_resources() -> bool:
    try:
        sys.modules[PACKAGES].is_installed("torch")
    except ModuleNotFoundError:
        return True
    return False


@HOST_FIXES.add(
    PACKAGES, "pkg_resources left setuptools: bases as `mmpretrain::...` are not found", _asks_pkg_resources
)
def packages_by_importlib() -> None:
    """Find packages by the import system."""

    def is_installed(package: str) -> bool:
        return importlib.util.find_spec(package) is not None

    def get_installed_path(package: str) -> str:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError(f"package {package} is not installed", name=package)
        return str(next(iter(spec.submodule_search_locations)))

    replace(PACKAGES, "is_installed", is_installed)
    replace(PACKAGES, "get_installed_path", get_installed_path)


# Processes -------------------------------------------------------------------------------------------------------

DIST = "mmengine.dist.utils"


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _processes_need_gpus() -> bool:
    if torch.cuda.is_available():
        return False
    try:
        with _environment(RANK="0", LOCAL_RANK="0"):
            sys.modules[DIST]._init_dist_pytorch("gloo", init_backend="none: it has come as far as choosing one")
    except NO_CUDA:
        return True
    except ValueError:
        return False
    return False


@HOST_FIXES.add(
    DIST, "mmengine's launchers set a CUDA device and take NCCL, also where there is no GPU", _processes_need_gpus
)
def processes_without_gpus() -> None:
    """Connect processes without a GPU by gloo, with every launcher."""
    for name in ("_init_dist_pytorch", "_init_dist_mpi", "_init_dist_slurm"):
        setattr(sys.modules[DIST], name, _on_any_device(getattr(sys.modules[DIST], name)))


def _on_any_device(start: Callable) -> Callable:
    @wraps(start)
    def start_on_any_device(backend: str, **options: Any) -> None:
        if torch.cuda.is_available():
            start(backend, **options)
            return
        native = torch.cuda.set_device
        torch.cuda.set_device = lambda device: None  # noqa: ARG005
        try:
            start("gloo" if backend == "nccl" else backend, **options)
        finally:
            torch.cuda.set_device = native

    return start_on_any_device


WRAPPERS = "mmengine.model.wrappers.distributed"


def _devices_of_cpu_modules() -> bool:
    """Return whether mmengine's wrapper passes torch a GPU for a module on a CPU."""
    wrapper, given = sys.modules[WRAPPERS].MMDistributedDataParallel, {}

    class Recorder(torch.nn.parallel.DistributedDataParallel):
        def __init__(self, module: torch.nn.Module, **options: Any):  # noqa: ARG002
            torch.nn.Module.__init__(self)
            given.update(options)

    type("Probe", (wrapper, Recorder), {})(torch.nn.PReLU(), device_ids=[0])
    return given["device_ids"] is not None


@HOST_FIXES.add(WRAPPERS, "the Runner names a GPU for every model that it distributes", _devices_of_cpu_modules)
def distributed_on_any_device() -> None:
    """Name no device for a model on a CPU."""
    wrapper = sys.modules[WRAPPERS].MMDistributedDataParallel
    native = wrapper.__init__

    @wraps(native)
    def __init__(self, module: torch.nn.Module, *args: Any, **options: Any) -> None:
        if next(module.parameters()).device.type == "cpu":
            options["device_ids"] = None
        native(self, module, *args, **options)

    wrapper.__init__ = __init__


# Checkpoints -----------------------------------------------------------------------------------------------------

CHECKPOINT = "mmengine.runner.checkpoint"
_ran: list[str] = []


def _note_call() -> None:
    _ran.append("called")


class _Stowaway:
    """An object that notes being called by an unsafe reader."""

    def __reduce__(self) -> tuple:
        return _note_call, ()


def _runs_stored_code() -> bool:
    """Return whether the reader of local files runs code, or cannot read mmengine's own."""
    history = importlib.import_module("mmengine.logging").HistoryBuffer([1.0], [1])
    _ran.clear()
    with TemporaryDirectory() as folder:
        own, foreign = Path(folder) / "own.pth", Path(folder) / "foreign.pth"
        torch.save({"history": history}, own)
        torch.save({"stowaway": _Stowaway()}, foreign)
        readable = _loads(own)
        _loads(foreign)
    return not readable or bool(_ran)


def _loads(path: Path) -> bool:
    read = sys.modules[CHECKPOINT].CheckpointLoader._get_checkpoint_loader(str(path))
    try:
        read(str(path), map_location="cpu")
    except Exception:
        return False
    return True


@HOST_FIXES.add(
    CHECKPOINT,
    "mmengine runs code stored in checkpoints, or with torch >= 2.6 cannot read its own",
    _runs_stored_code,
)
def safe_checkpoints() -> None:
    """Read tensors and plain values only, and histories made of these."""
    from agreid_plugin.hosts.mmengine.engine.checkpoint_reader import load_from_local, load_from_url
    from agreid_plugin.hosts.safe_torch import SafeTorch

    module = sys.modules[CHECKPOINT]
    module.CheckpointLoader.register_scheme(prefixes="", loader=load_from_local, force=True)
    module.load_url, module.torch = load_from_url, SafeTorch()  # what comes from elsewhere than the disk


@HOST_FIXES.add(
    CHECKPOINT,
    "a crash leaves half a checkpoint of mmengine, and a full disk ends the run",
    lambda: not hasattr(sys.modules[CHECKPOINT].save_checkpoint, "__wrapped__"),
)
def atomic_checkpoints() -> None:
    """Write files atomically, and go on without where the disk is full."""
    native = sys.modules[CHECKPOINT].save_checkpoint

    @wraps(native)
    def save_checkpoint(*args: Any, **options: Any) -> None:
        from agreid_plugin.hosts.mmengine.engine.checkpoints import write_atomically

        write_atomically(native)(*args, **options)

    replace(CHECKPOINT, "save_checkpoint", save_checkpoint)


HOOK = "mmengine.hooks.checkpoint_hook"


@HOST_FIXES.add(
    HOOK,
    "mmengine's CheckpointHook counts a checkpoint as written that a full disk refused",
    lambda: not hasattr(sys.modules[HOOK].CheckpointHook.after_train, "__wrapped__"),
)
def require_checkpoints() -> None:
    """Refuse to end a run as a success if its last checkpoint was not written."""
    hook = sys.modules[HOOK].CheckpointHook
    native = hook.after_train

    @wraps(native)
    def after_train(self: Any, runner: Any) -> None:
        from agreid_plugin.hosts.mmengine.engine.checkpoints import require_written

        require_written(self)
        native(self, runner)

    hook.after_train = after_train


# Compiling -------------------------------------------------------------------------------------------------------

RUNNER = "mmengine.runner.runner"


@HOST_FIXES.add(
    RUNNER,
    "mmengine's `compile` has torch compile the optimizer's step, which fails with any `paramwise_cfg`",
    lambda: not hasattr(sys.modules[RUNNER].Runner._maybe_compile, "__wrapped__"),
)
def compile_networks() -> None:
    """Compile the network of a model of ours; of another the training step, with an optimizer that torch can read."""
    runner = sys.modules[RUNNER].Runner
    native = runner._maybe_compile

    @wraps(native)
    def _maybe_compile(self: Any, target: str) -> None:
        from agreid_plugin.hosts.mmengine.engine.runner import compile_model

        compile_model(self, partial(native, self), target)

    runner._maybe_compile = _maybe_compile


# Configurations --------------------------------------------------------------------------------------------------

YAML = "mmengine.fileio.handlers.yaml_handler"


def _yaml_makes_objects() -> bool:
    try:
        sys.modules[YAML].YamlHandler().load_from_fileobj(StringIO("!!python/name:os.system ''"))
    except yaml.YAMLError:
        return False
    return True


@HOST_FIXES.add(
    YAML, "mmengine's YAML files, as bases of configurations, may hold tags that run code", _yaml_makes_objects
)
def plain_yaml() -> None:
    """Read plain YAML."""
    sys.modules[YAML].Loader = PlainLoader
