"""Avalanche's strategies by name, for query-incremental streams.

On avalanche-lib 0.6.0 the stock classes run as they are; these run on its
development head too and bring an evaluator that fits. What each does here stands in
docs/strategies.md, kept by a test.
"""

from __future__ import annotations

from avalanche.training import supervised as stock

from avalanche_vilco.training.templates import BatchObjectMixin


class ViLCoNaive(BatchObjectMixin, stock.Naive):
    """Fine-tuning on one experience after another."""


class ViLCoCumulative(BatchObjectMixin, stock.Cumulative):
    """Training on all experiences so far."""


class ViLCoJoint(BatchObjectMixin, stock.JointTraining):
    """One training on the union of all experiences."""


class ViLCoReplay(BatchObjectMixin, stock.Replay):
    """Rehearsal of stored samples."""


class ViLCoEWC(BatchObjectMixin, stock.EWC):
    """Elastic weight consolidation."""


class ViLCoMAS(BatchObjectMixin, stock.MAS):
    """Memory-aware synapses."""


class ViLCoLwF(BatchObjectMixin, stock.LwF):
    """Learning without forgetting."""


class ViLCoGEM(BatchObjectMixin, stock.GEM):
    """Gradient episodic memory."""


class ViLCoAGEM(BatchObjectMixin, stock.AGEM):
    """Averaged gradient episodic memory."""


class ViLCoGDumb(BatchObjectMixin, stock.GDumb):
    """Training from scratch on a balanced memory."""


class ViLCoFromScratch(BatchObjectMixin, stock.FromScratchTraining):
    """A new model for each experience."""
