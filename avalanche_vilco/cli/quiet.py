"""Importing the library without the warnings of what it stands on."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any


def import_quietly(name: str) -> Any:
    """A module of ours that imports Avalanche.

    Avalanche and its dependencies warn of their own deprecations on import, and its
    stock plugins call what it has deprecated.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = import_module(name)
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="avalanche")
    return module
