"""The evaluation plugin: which metrics, on which streams, to which loggers."""

from pathlib import Path

import torch
from avalanche.evaluation.metrics import loss_metrics, timing_metrics
from avalanche.logging import InteractiveLogger, TensorboardLogger, TextLogger
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive

from avalanche_vilco import MomentLoss, vilco_mq, vilco_mq_tiny
from avalanche_vilco.evaluation import recall_metrics, task_matrix_metrics


def main(log_folder="runs/eval_plugin_vilco_mq"):
    torch.manual_seed(0)
    Path(log_folder).mkdir(parents=True, exist_ok=True)
    with open(f"{log_folder}/log.txt", "w") as log:
        run(log_folder, log)


def run(log_folder, log):
    benchmark = vilco_mq()
    model = vilco_mq_tiny()

    loggers = [InteractiveLogger(), TensorboardLogger(log_folder), TextLogger(log)]

    # Ego4D's R@kx: k predictions for each window of the query in the clip
    budget_of_the_challenge = recall_metrics(k=(1, 5), tiou=(0.3, 0.5))
    # plain R@k: k predictions for each query
    plain = recall_metrics(k=(1, 5), tiou=(0.3, 0.5), budget="fixed")
    # p[i, j], its averages P_i and backward forgetting, for the test stream only
    matrix = task_matrix_metrics(k=(1,), tiou=(0.5,))

    strategy = Naive(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=2e-3),
        criterion=MomentLoss(),
        train_mb_size=8,
        train_epochs=2,
        eval_mb_size=16,
        evaluator=EvaluationPlugin(
            budget_of_the_challenge,
            plain,
            matrix,
            loss_metrics(epoch=True, experience=True, stream=True),
            timing_metrics(epoch=True),
            loggers=loggers,
        ),
        # evaluates the valid stream of the experience after its last epoch
        eval_every=0,
    )

    for experience in benchmark.train_stream:
        valid = benchmark.valid_stream[experience.current_experience]
        strategy.train(experience, eval_streams=[valid])
        strategy.eval(benchmark.test_stream[:])

    print(matrix[0].matrices["Recall@1x_tIoU0.5"].to_text())


if __name__ == "__main__":
    main()
