"""States that keep rows of all batches and are put together over processes."""

from collections.abc import Callable
from typing import Any

import torch
import torchmetrics
from torch import Tensor
from torchmetrics.utilities.data import dim_zero_cat


class PooledMetric(torchmetrics.Metric):
    """A ``torchmetrics.Metric`` some of whose states are lists of rows.

    A process without any batch takes part in putting them together, which torchmetrics
    does for rows of one float32 number only.

    :param kwargs: options of ``torchmetrics.Metric``.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._no_rows: dict[str, Tensor] = {}

    def add_rows(self, name: str, *shape: int, dtype: torch.dtype) -> None:
        """Add a state that is a list of rows.

        :param name: attribute to append tensors ``(n, *shape)`` to.
        :param shape: of a row.
        :param dtype: type in which rows are sent to other processes.
        """
        self.add_state(name, [], dist_reduce_fx="cat")
        self._no_rows[name] = torch.empty((0, *shape), dtype=dtype)

    def rows(self, name: str) -> Tensor:
        """All rows of a state.

        :param name: as in :meth:`add_rows`.
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
        """Put the states of all processes together, as torchmetrics documents.

        :param dist_sync_fn: gathers a tensor.
        :param process_group: processes; all by default.
        :param should_sync: False does nothing.
        :param distributed_available: tells whether there are other processes.
        """
        available = distributed_available or self.distributed_available_fn
        if should_sync and not self._is_synced and callable(available) and available():
            for name, empty in self._no_rows.items():
                setattr(self, name, [self.rows(name).to(empty.dtype)])
        super().sync(dist_sync_fn, process_group, should_sync, distributed_available)
