"""Averaged gradient episodic memory that can be saved."""

from __future__ import annotations

from typing import Any

from avalanche.training.plugins import AGEMPlugin


class MomentAGEMPlugin(AGEMPlugin):
    """Stock A-GEM whose state can be pickled.

    The stock plugin keeps a running generator, which cannot be (avalanche-lib 0.6.0,
    ``agem.py``, ``update_memory``). Here a copy starts its pass over the memory anew;
    between experiences, where checkpoints are taken, none has begun, so a resumed run
    draws what an uninterrupted one does.
    """

    def __getstate__(self) -> dict[str, Any]:
        return {name: v for name, v in vars(self).items() if name != "buffer_dliter"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        loader = self.buffer_dataloader
        self.buffer_dliter = iter([] if loader is None else loader)
