"""How Sphinx builds these pages: `tools/run sphinx-build -W docs build/docs`."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]

import agreid_plugin  # noqa: E402 - before fast-reid, torchvision, timm and open_clip, which it fixes

project = "agreid_plugin"
author = "The agreid_plugin developers"
copyright = "the agreid_plugin developers"
version = release = agreid_plugin.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "docstrings", "generated", "projects"]
exclude_patterns = ["_ext"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "show-inheritance": False}
autoclass_content = "class"
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
default_role = "literal"  # what docstrings write in single backticks
add_module_names = False
toc_object_entries_show_parents = "hide"
maximum_signature_line_length = 100

html_theme = "furo"
html_title = "agreid_plugin"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["wide_tables.css"]
html_theme_options = {"navigation_with_keys": True}
