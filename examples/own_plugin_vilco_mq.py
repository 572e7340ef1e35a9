"""Your own plugin: pull the weights towards those after the last experience."""

import torch
from avalanche.training.plugins import SupervisedPlugin

from avalanche_vilco import MomentLoss, vilco_mq, vilco_mq_tiny
from avalanche_vilco.training.strategies import LocalizationNaive


class StayClose(SupervisedPlugin):
    def __init__(self, strength):
        super().__init__()
        self.strength = strength
        self.anchor = {}

    def before_backward(self, strategy, **kwargs):
        for name, weight in strategy.model.named_parameters():
            if name in self.anchor:
                old = self.anchor[name]
                # a grown head has more rows than its anchor
                gap = weight[: len(old)] - old if old.ndim else weight - old
                strategy.loss += self.strength * gap.square().sum()

    def after_training_exp(self, strategy, **kwargs):
        weights = strategy.model.named_parameters()
        self.anchor = {name: weight.detach().clone() for name, weight in weights}


def main():
    torch.manual_seed(0)
    benchmark = vilco_mq()
    model = vilco_mq_tiny()
    strategy = LocalizationNaive(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=2e-3),
        criterion=MomentLoss(),
        train_mb_size=8,
        train_epochs=3,
        eval_mb_size=16,
        plugins=[StayClose(strength=0.1)],
    )
    for experience in benchmark.train_stream:
        strategy.train(experience)
        results = strategy.eval(benchmark.test_stream[:])
        prefix = "AverageRecall@1x_tIoU0.5"
        print({key: v for key, v in results.items() if key.startswith(prefix)})


if __name__ == "__main__":
    main()
