"""States that pool batches, and are put together over processes."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torchmetrics
from torch import Tensor
from torchmetrics.utilities.data import dim_zero_cat

# Rows that may wait, on a GPU, before their padding is looked for: some 10 MB.
_PATIENCE = 1 << 20


class PooledMetric(torchmetrics.Metric):
    """A ``torchmetrics.Metric`` whose states are sums, or lists of rows.

    Lists hold no padding for long. A process without any batch takes part in putting
    them together, which torchmetrics does for rows of one float32 number only.

    :param kwargs: options of ``torchmetrics.Metric``.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._no_rows: dict[str, Tensor] = {}

    def set_apart(self, *options: Any) -> None:
        """Keep a ``MetricCollection`` from merging states that differ by options.

        It lets metrics share states that have the same names and are equal after the
        first batch, as the states of one class may be by chance. A state named by class
        and options has no namesake elsewhere. Subclasses with options call this too.

        :param options: whatever decides what the states hold.
        """
        self.add_counts(f"{type(self)}{options}")

    def add_rows(self, name: str, *shape: int, dtype: torch.dtype) -> None:
        """Add a state that is a list of rows.

        :param name: attribute to append tensors ``(n, *shape)`` to.
        :param shape: of a row.
        :param dtype: type in which rows are sent to other processes.
        """
        self.add_state(name, [], dist_reduce_fx="cat")
        self._no_rows[name] = torch.empty((0, *shape), dtype=dtype)

    def add_counts(self, name: str, *shape: int) -> None:
        """Add a state that is a sum of whole numbers."""
        zeros = torch.zeros(shape, dtype=torch.long)
        self.add_state(name, zeros, dist_reduce_fx="sum")

    def follow(self, values: Tensor) -> None:
        """Go to the device of what is to be added."""
        if self.device != values.device:
            self.to(values.device)

    def append_rows(self, rows: Mapping[str, Tensor], *, mark: str) -> None:
        """Append rows to list states and leave out padding.

        On the CPU padding never enters. Elsewhere the host would have to wait to learn
        how much there is, so it is dropped only when more than ``2**20`` rows, and more
        than were left the last time, have come: the states hold at most twice the rows
        kept and ``2**20`` more, and the host waits a logarithmic number of times.

        :param rows: what to append, by name of the state, equally many rows each.
        :param mark: the state that is negative for padding.
        """
        for name, new in rows.items():
            getattr(self, name).append(new)
        n_rows = [len(each) for each in getattr(self, mark)]
        if _counts_without_waiting(rows[mark]):
            self._drop_padding(tuple(rows), mark, first=len(n_rows) - 1)
        elif sum(n_rows[1:]) > max(_PATIENCE, n_rows[0]):
            self._drop_padding(tuple(rows), mark, first=0)

    def _drop_padding(self, names: tuple[str, ...], mark: str, first: int) -> None:
        """Make one piece, without padding, of all pieces from ``first`` on."""
        kept = torch.cat(getattr(self, mark)[first:]) >= 0
        for name in names:
            pieces = getattr(self, name)
            pieces[first:] = [torch.cat(pieces[first:])[kept]]

    def rows(self, name: str) -> Tensor:
        """All rows of a state.

        :return: ``(n, *shape)``.
        """
        value = getattr(self, name)
        if isinstance(value, list) and not value:
            return self._no_rows[name].to(self.device)
        return dim_zero_cat(value)

    def sync(
        self,
        dist_sync_fn: Callable[..., Any] | None = None,
        process_group: Any | None = None,
        should_sync: bool = True,
        distributed_available: Callable[[], bool] | None = None,
    ) -> None:
        """Put the states of all processes together, as torchmetrics documents."""
        available = distributed_available or self.distributed_available_fn
        if should_sync and not self._is_synced and callable(available) and available():
            for name, empty in self._no_rows.items():
                setattr(self, name, [self.rows(name).to(empty.dtype)])
        super().sync(dist_sync_fn, process_group, should_sync, distributed_available)


def _counts_without_waiting(rows: Tensor) -> bool:
    return rows.is_cpu
