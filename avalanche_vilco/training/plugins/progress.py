"""A progress bar over the iterations of an experience."""

from __future__ import annotations

from typing import Any

from avalanche.training.plugins import SupervisedPlugin
from tqdm import tqdm


class ProgressPlugin(SupervisedPlugin):
    """Shows iterations done, left and the time they take, on a terminal's stderr.

    :param n_experiences: experiences to train, for the label.
    """

    def __init__(self, n_experiences: int) -> None:
        super().__init__()
        self._n_experiences = n_experiences
        self._bar: Any = None

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Open the bar."""
        number = strategy.experience.current_experience + 1
        self._bar = tqdm(
            total=len(strategy.dataloader) * strategy.train_epochs,
            desc=f"experience {number}/{self._n_experiences}",
            unit="it",
            leave=False,
            disable=None,
        )

    def after_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        """Advance."""
        self._bar.update()

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Close the bar."""
        self._bar.close()
        self._bar = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_bar": None}
