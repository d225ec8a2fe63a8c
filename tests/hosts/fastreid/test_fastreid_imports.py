"""The host imports, whoever imports it, wherever."""

import importlib
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from agreid_plugin.errors import InputError
from agreid_plugin.hosts import torchvision_fixes
from agreid_plugin.hosts.fastreid.commands.doctor import list_host_modules


def python(code: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd, env={**os.environ, **env}, timeout=120
    )


def test_every_module_of_the_host_imports():
    names = list(list_host_modules())
    assert len(names) > 120
    for name in names:
        importlib.import_module(name)


def test_importing_the_plugin_loads_neither_torch_nor_a_host():
    result = python(
        "import sys, agreid_plugin; print([m for m in ('torch', 'fastreid', 'torchvision') if m in sys.modules])"
    )
    assert result.stdout.strip() == "[]", result.stderr


def test_a_host_is_imported_by_installing_it_and_not_before():
    code = (
        "import sys\n"
        "from agreid_plugin.hosts.fastreid import compat as fastreid\n"
        "from agreid_plugin.hosts.mmengine import compat as mmengine\n"
        "print([name for name in ('fastreid', 'mmengine') if name in sys.modules], *map(len, armed()))\n"
        "fastreid.install(), mmengine.install(), fastreid.install()\n"
        "print([name for name in ('fastreid', 'mmengine') if name in sys.modules], *map(len, armed()))\n"
    ).replace("armed()", "[host.HOST_FIXES.armed() for host in (fastreid, mmengine)]")
    before, after = python(code).stdout.splitlines()
    assert before.startswith("[] ")
    assert all(int(count) > 10 for count in before.split()[1:])
    assert after.startswith("['fastreid'] 0 ")


@pytest.mark.slow
@pytest.mark.parametrize(
    "imports",
    [
        "import agreid_plugin, torchvision; from fastreid.engine import DefaultTrainer",
        "import fastreid, agreid_plugin; from fastreid.engine import DefaultTrainer",
        "from agreid_plugin.hosts.fastreid.engine import distributed",
        "from agreid_plugin.hosts.fastreid.config import loading",
        "from agreid_plugin.hosts.fastreid.models import losses",
        "from agreid_plugin.hosts.fastreid import compat; compat.install()",
    ],
)
def test_any_order_of_imports_gives_the_whole_host(imports):
    check = "from fastreid.config import get_cfg; from agreid_plugin.hosts.fastreid import compat; "
    check += "print(get_cfg().SEED, 'optimizer_without_flat_buffer' in compat.HOST_FIXES.applied())"
    result = python(f"{imports}; {check}")
    assert result.stdout.split() == ["0", "True"], result.stderr


def test_imports_that_failed_succeed_after_ours():
    """As in a notebook, where they are repeated in the same process."""
    code = "for name in ('timm', 'torchvision', 'fastreid.engine'):\n    try:\n        __import__(name)\n"
    code += "    except (RuntimeError, ImportError) as error:\n        print(error)\n"
    code += "import agreid_plugin, timm, torchvision.transforms\nfrom fastreid.engine import DefaultTrainer\n"
    code += "print(torchvision.transforms.Resize(4), DefaultTrainer.__name__)"
    result = python(code)
    *_, last = result.stdout.strip().splitlines()
    assert last.startswith("Resize(size=4"), result.stderr
    assert last.endswith(" DefaultTrainer")
    page = " ".join((ROOT / "README.md").read_text().split())
    failed = [line.partition(" (/")[0] for line in result.stdout.splitlines()[:-1]]
    assert [line for line in failed if line not in page] == []


@pytest.mark.slow
def test_spawned_data_workers_import_the_host(tmp_path, market):
    # The worker unpickles a dataset of the host's: nothing but the main module brings agreid_plugin there.
    script = tmp_path / "script.py"
    script.write_text(
        f"""
import agreid_plugin
from fastreid.data.common import CommDataset
from fastreid.data.datasets import DATASET_REGISTRY
from torch.utils.data import DataLoader

def size(image):
    return image.size

if __name__ == "__main__":
    items = DATASET_REGISTRY.get("Market1501")(root={str(market)!r}).query
    dataset = CommDataset(items, size, relabel=False)
    print(len(list(DataLoader(dataset, num_workers=1, multiprocessing_context="spawn", collate_fn=list))))
"""
    )
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=180)
    assert result.stdout.strip() == "16", result.stderr


def test_schemas_are_declared_only_after_the_import_has_failed():
    before = torchvision_fixes.HOST_FIXES.applied()
    calls = []
    torchvision_fixes.run_import("torchvision", lambda: calls.append("import"))
    assert calls == ["import"]
    assert torchvision_fixes.HOST_FIXES.applied() == before


def test_other_errors_of_torchvision_are_not_hidden():
    def fail():
        raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError, match="disk on fire"):
        torchvision_fixes.run_import("torchvision", fail)


def make_plugin(folder: Path, code: str) -> None:
    """Write an installed-looking package with an entry point for the host's plugins."""
    (folder / "third_party.py").write_text(code)
    info = folder / "third_party-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fastreid.plugins]\nours = third_party\n")


def test_a_third_partys_plugin_registers_its_backbone(tmp_path):
    make_plugin(
        tmp_path,
        "from fastreid.modeling.backbones import BACKBONE_REGISTRY\n"
        "@BACKBONE_REGISTRY.register()\n"
        "def build_third_party_backbone(cfg):\n    'A backbone from elsewhere.'\n",
    )
    result = python("from agreid_plugin.cli import main; main(['list', 'backbones'])", PYTHONPATH=str(tmp_path))
    line = next(line for line in result.stdout.splitlines() if "build_third_party_backbone" in line)
    assert line.endswith("A backbone from elsewhere.")


@pytest.mark.filterwarnings("ignore:.*components.* found in sys.modules")
def test_a_broken_plugin_is_one_line(tmp_path, monkeypatch):
    make_plugin(tmp_path, "import no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    line = r"^the plugin ours \(third_party\) does not load: No module named 'no_such_module'$"
    with pytest.raises(InputError, match=line):
        runpy.run_module("agreid_plugin.hosts.fastreid.components")
