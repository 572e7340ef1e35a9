"""Save and resume a strategy between experiences.

Avalanche's checkpoints are dill files: load only those of your own runs. Once this
module is imported, as it is with every benchmark, Avalanche's own functions work too.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from avalanche import checkpointing as stock

# torch.optim deletes the names of its submodules. Without them dill pickles classes of
# optimizers by value, and fails on what they refer to.
for _path, _module in sorted(sys.modules.items()):
    _parent, _, _name = _path.rpartition(".")
    if _parent == "torch.optim" and not hasattr(torch.optim, _name):
        setattr(torch.optim, _name, _module)


def save_checkpoint(strategy: Any, path: Path | str) -> None:
    """Write a strategy's state atomically, between two experiences.

    :param strategy: not inside its training or evaluation loop.
    """
    path = Path(path)
    unfinished = path.with_name(path.name + ".part")
    stock.save_checkpoint(strategy, str(unfinished))
    os.replace(unfinished, path)


def load_checkpoint(
    strategy: Any, path: Path | str, *, device: str | None = None
) -> tuple[Any, int]:
    """State of a strategy from one's own checkpoint; not for files of others.

    :param strategy: built as the saved one was.
    :param path: file; where there is none the strategy is returned as it is.
    :param device: where what was on a GPU goes; None: where it was.
    :return: the strategy and the number of experiences it has learnt.
    """
    strategy, done = stock.maybe_load_checkpoint(
        strategy, str(path), map_location=device
    )
    return strategy, int(done)
