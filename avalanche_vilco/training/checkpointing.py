"""Save and resume a strategy between experiences.

Avalanche's checkpoints are dill files: load only those of your own runs. Once this
module is imported, as it is with every benchmark, Avalanche's own functions work too.
"""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from avalanche import checkpointing as stock

from avalanche_vilco.core.errors import DataError
from avalanche_vilco.training.plugins.progress import ProgressPlugin

_ABOUT = "about.json"
"""Beside what torch writes into the archive; read without running what it holds."""

# torch.optim deletes the names of its submodules. Without them dill pickles classes of
# optimizers by value, and fails on what they refer to.
for _path, _module in sorted(sys.modules.items()):
    _parent, _, _name = _path.rpartition(".")
    if _parent == "torch.optim" and not hasattr(torch.optim, _name):
        setattr(torch.optim, _name, _module)


def save_checkpoint(
    strategy: Any, path: Path | str, about: Mapping[str, Any] | None = None
) -> None:
    """Write a strategy's state atomically, between two experiences.

    :param strategy: not inside its training or evaluation loop.
    :param path: file to write or replace.
    :param about: what :func:`read_about` is to find; JSON-safe.
    """
    path = Path(path)
    unfinished = path.with_name(path.name + ".part")
    stock.save_checkpoint(strategy, str(unfinished))
    with zipfile.ZipFile(unfinished, "a") as archive:
        whole = {**_parts(strategy), **(about or {})}
        # Torch reads archives whose files are all in one folder.
        folder = archive.namelist()[0].partition("/")[0]
        archive.writestr(f"{folder}/{_ABOUT}", json.dumps(whole))
    os.replace(unfinished, path)


def load_checkpoint(
    strategy: Any, path: Path | str, *, device: str | None = None
) -> tuple[Any, int]:
    """State of a strategy from one's own checkpoint; not for files of others.

    :param strategy: built as the saved one was.
    :param path: file; where there is none the strategy is returned as it is.
    :param device: where what was on a GPU goes; None: where it was.
    :return: the strategy and the number of experiences it has learnt.
    :raises DataError: the file is damaged, or of a strategy of another class or with
        other plugins.
    """
    if not Path(path).is_file():
        return strategy, 0
    about = read_about(path)
    for name, wanted in _parts(strategy).items():
        found = about.get(name, wanted)
        if found != wanted:
            problem = f"holds a strategy of {name} {found}, not {wanted}"
            raise DataError(path, problem, hint="build the strategy that was saved")
    try:
        strategy, done = stock.maybe_load_checkpoint(
            strategy, str(path), map_location=device
        )
    except Exception as error:
        # Whatever classes of another version make of it.
        problem = f"cannot be read: {type(error).__name__}: {error}"
        raise DataError(path, problem, hint="is it of another version?") from error
    return strategy, int(done)


def _parts(strategy: Any) -> dict[str, Any]:
    """What tells strategies apart; a bar that shows progress does not."""
    names = {type(plugin).__name__ for plugin in strategy.plugins}
    plugins = sorted(names - {ProgressPlugin.__name__})
    return {"class": type(strategy).__name__, "plugins": plugins}


def read_about(path: Path | str) -> dict[str, Any]:
    """What was said of a checkpoint when it was written; runs nothing of it.

    :param path: file.
    :return: empty for a file that :func:`save_checkpoint` has not written.
    :raises DataError: the file is damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if (damaged := archive.testzip()) is not None:
                raise zipfile.BadZipFile(f"{damaged} has another checksum")
            names = [n for n in archive.namelist() if n.endswith(f"/{_ABOUT}")]
            return dict(json.loads(archive.read(names[0]))) if names else {}
    except Exception as error:
        # A damaged archive makes zipfile raise half a dozen kinds.
        problem = f"damaged or no checkpoint: {error}"
        raise DataError(path, problem, hint="delete it, or begin anew") from None
