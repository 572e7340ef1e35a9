"""Riemannian Walk that says when it cannot work."""

from __future__ import annotations

from typing import Any

from avalanche.training import plugins as stock


class RWalkPlugin(stock.RWalkPlugin):
    """Stock Riemannian Walk that refuses experiences shorter than ``delta_t``.

    With fewer iterations than ``delta_t`` the stock plugin has no score to
    normalise, and the penalty turns weights into NaN without a word.
    """

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Compare the experience's iterations with ``delta_t``.

        :raises ValueError: the experience is too short.
        """
        iterations = len(strategy.dataloader) * strategy.train_epochs
        if iterations < self.delta_t:
            raise ValueError(
                f"RWalk updates its scores every delta_t={self.delta_t} iterations, "
                f"but the experience has {iterations}: pass a smaller delta_t"
            )
