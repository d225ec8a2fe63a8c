"""Names of a model's parameters."""

from __future__ import annotations


def is_below(name: str, module: str) -> bool:
    """Tell whether a parameter is a module's, or of a module within it, by their names."""
    return name == module or name.startswith(f"{module}.")
