"""Windows of clips, and an evaluation loop that needs no strategy."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch


@dataclass
class Moments:
    segments_sec: torch.Tensor
    labels: torch.Tensor
    scores: torch.Tensor

    def __getitem__(self, clips):
        fields = self.segments_sec, self.labels, self.scores
        return Moments(*(field[clips] for field in fields))

    def arguments(self, targets):
        """Arguments of a function of predictions and targets."""
        mine = self.segments_sec, self.scores, self.labels
        return *mine, targets.segments_sec, targets.labels


def _random_moments(n_clips, n, seed, n_labels=2):
    draw = torch.Generator().manual_seed(seed)
    starts = torch.rand(n_clips, n, generator=draw, dtype=torch.float64) * 30
    lengths = torch.rand(n_clips, n, generator=draw, dtype=torch.float64) * 30
    return Moments(
        torch.stack([starts, starts + lengths], dim=2),
        torch.randint(-1, n_labels, (n_clips, n), generator=draw),
        torch.rand(n_clips, n, generator=draw),
    )


class Model:
    """Answers with what its output is: the predictions of the mini-batch."""

    def __init__(self):
        self.n_decoded = 0

    def decode(self, output, targets):
        self.n_decoded += 1
        return output


class Stream(list):
    name = "test"


def _strategy_of(n_experiences=2):
    """A strategy as plugins see it, and the stream that it evaluates."""
    stream = Stream()
    stream.extend(
        SimpleNamespace(current_experience=i, origin_stream=stream, task_labels=[i])
        for i in range(n_experiences)
    )
    clock = SimpleNamespace(train_iterations=7)
    model = Model()
    strategy = SimpleNamespace(
        model=model, mb_output=None, mb_y=None, experience=None, clock=clock
    )
    return strategy, stream


def _evaluate(strategy, plugins, batches_by_experience):
    """Values by name that the plugins emit in an evaluation loop."""
    emitted = {}

    def call(callback):
        for plugin in plugins:
            for value in getattr(plugin, callback)(strategy) or []:
                assert type(value.value) is float
                assert value.x_plot == strategy.clock.train_iterations
                emitted[value.name] = value.value

    call("before_eval")
    for experience, batches in batches_by_experience:
        strategy.experience = experience
        call("before_eval_exp")
        for strategy.mb_output, strategy.mb_y in batches:
            call("after_eval_iteration")
        call("after_eval_exp")
    call("after_eval")
    return emitted


@pytest.fixture(scope="session")
def random_moments():
    return _random_moments


@pytest.fixture(scope="session")
def strategy_of():
    return _strategy_of


@pytest.fixture(scope="session")
def evaluate():
    return _evaluate
