"""Recipes of this package, by name: beside it in a checkout, inside it where a wheel was installed."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[1]
SHIPPED = "shipped"
"""Folder of the package into which `setup.py` puts them."""
RECIPES = PACKAGE / SHIPPED if (PACKAGE / SHIPPED).is_dir() else PACKAGE.parent
"""Has `projects` and `configs`."""


def find_recipe(name: str, recipes: Path = RECIPES) -> str:
    """Return a file as it is named if it is there, else the recipe of that name, as `ViSA/cargo.yml`."""
    places = (Path(name), recipes / "projects" / name, recipes / name)
    return next((str(place) for place in places if place.is_file()), name)
