"""List states of torchmetrics that hold no padding."""

from collections.abc import Mapping

import torch
import torchmetrics
from torch import Tensor

# Rows that may wait, on a GPU, before their padding is looked for: some 10 MB.
_PATIENCE = 1 << 20


def append_rows(
    metric: torchmetrics.Metric, rows: Mapping[str, Tensor], *, mark: str
) -> None:
    """Append rows to list states and leave out padding.

    On the CPU padding never enters. Elsewhere the host would have to wait to learn how
    much there is, so it is dropped only when more than ``2**20`` rows, and more than
    were left the last time, have come: the states hold at most twice the rows kept and
    ``2**20`` more, and the host waits a logarithmic number of times.

    :param metric: owner of the states.
    :param rows: what to append, by name of the state, equally many rows each.
    :param mark: the state that is negative for padding.
    """
    for name, new in rows.items():
        getattr(metric, name).append(new)
    n_rows = [len(each) for each in getattr(metric, mark)]
    if _counts_without_waiting(rows[mark]):
        _drop_padding(metric, tuple(rows), mark, first=len(n_rows) - 1)
    elif sum(n_rows[1:]) > max(_PATIENCE, n_rows[0]):
        _drop_padding(metric, tuple(rows), mark, first=0)


def _counts_without_waiting(rows: Tensor) -> bool:
    return rows.is_cpu


def _drop_padding(
    metric: torchmetrics.Metric, names: tuple[str, ...], mark: str, first: int
) -> None:
    """Make one piece, without padding, of all pieces from ``first`` on."""
    kept = torch.cat(getattr(metric, mark)[first:]) >= 0
    for name in names:
        pieces = getattr(metric, name)
        pieces[first:] = [torch.cat(pieces[first:])[kept]]
