"""Sphinx settings; build with ``sphinx-build -W docs docs/_build``."""

import avalanche_vilco

project = "avalanche_vilco"
author = "avalanche_vilco contributors"
release = avalanche_vilco.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
html_theme = "furo"
exclude_patterns = ["_build"]
autodoc_typehints = "description"
autodoc_member_order = "bysource"
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]
