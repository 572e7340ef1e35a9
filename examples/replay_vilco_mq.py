"""Replay on Moment Queries: a memory of 64 clips, balanced over queries."""

import torch
from avalanche.logging import TextLogger
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
from avalanche.training.storage_policy import ClassBalancedBuffer
from avalanche.training.supervised import Naive

from avalanche_vilco import MomentLoss, vilco_mq, vilco_mq_tiny
from avalanche_vilco.evaluation import recall_metrics, task_matrix_metrics


def main():
    torch.manual_seed(0)
    benchmark = vilco_mq()
    model = vilco_mq_tiny()

    # the memory keeps references to clips; features stay on disk
    memory = ClassBalancedBuffer(max_size=64)
    replay = ReplayPlugin(mem_size=64, storage_policy=memory)

    matrix = task_matrix_metrics()
    strategy = Naive(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=2e-3),
        criterion=MomentLoss(),
        train_mb_size=8,
        train_epochs=3,
        eval_mb_size=16,
        plugins=[replay],
        evaluator=EvaluationPlugin(recall_metrics(), matrix, loggers=[TextLogger()]),
    )

    for experience in benchmark.train_stream:
        names = [query.name for query in experience.queries_in_this_experience]
        print(f"Experience {experience.current_experience} brings {names}")
        strategy.train(experience)
        print(f"The memory holds {len(set(memory.buffer.clip_ids))} clips")
        strategy.eval(benchmark.test_stream[:])

    print(matrix[0].matrices["Recall@1x_tIoU0.5"].to_text())


if __name__ == "__main__":
    main()
