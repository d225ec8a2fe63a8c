"""Recipes go into the wheel: they stand beside the package, where pyproject.toml cannot name them."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


class BuildWithRecipes(build_py):
    """Copy `configs` and `projects` into the package that is built."""

    def run(self) -> None:
        """Build."""
        super().run()
        if self.editable_mode:
            return
        for path in (path for folder in ("configs", "projects") for path in (ROOT / folder).rglob("*")):
            if path.suffix in (".yml", ".py"):
                copy = Path(self.build_lib, "agreid_plugin", "shipped", path.relative_to(ROOT))
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)


setup(cmdclass={"build_py": BuildWithRecipes})
