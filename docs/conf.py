"""Sphinx settings; build with ``sphinx-build -W docs docs/_build``."""

import pkgutil
import sys
from pathlib import Path
from typing import Any

import avalanche_vilco

project = "avalanche_vilco"
author = "avalanche_vilco contributors"
release = avalanche_vilco.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
html_theme = "furo"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
nitpicky = True
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False


def write_pages(app: Any) -> None:
    """A page for each module, so that whatever of ours is named has one."""
    folder = Path(app.srcdir, "api")
    folder.mkdir(exist_ok=True)
    options = "\n   :members:\n   :ignore-module-all:\n"
    for module in pkgutil.walk_packages(avalanche_vilco.__path__, f"{project}."):
        heading = f"{module.name}\n{'=' * len(module.name)}\n\n"
        page = folder / f"{module.name}.rst"
        page.write_text(f"{heading}.. automodule:: {module.name}{options}")


def resolve(app: Any, env: Any, node: Any, text: Any) -> Any:
    """Find names of ours in any module; show those of others without a link.

    What a docstring or a page refers to has to be found. A type that autodoc reads off
    a signature may be of another package.
    """
    if node.get("refdomain") != "py":
        return None
    node["refspecific"] = True
    kind, target = node["reftype"], node["reftarget"]
    package, _, rest = target.partition(".")
    # A package offers names of its modules: avalanche_vilco.run.
    for name in (target, rest.rpartition(".")[2] if package == project else ""):
        found = env.domains["py"].resolve_xref(
            env, node["refdoc"], app.builder, kind, name, node, text
        )
        if found is not None:
            return found
    is_foreign = rest and package in sys.modules and package != project
    is_of_signature = kind in ("class", "obj") and "refwarn" not in node
    return text if is_foreign or is_of_signature else None


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("builder-inited", write_pages)
    app.connect("missing-reference", resolve)
