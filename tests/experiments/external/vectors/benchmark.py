"""Class-incremental vectors under a linear model."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import torch
from avalanche.benchmarks import class_incremental_benchmark
from msgspec import Meta
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from avalanche_vilco.benchmarks.scenario import Scenario, experience_dataset
from avalanche_vilco.benchmarks.spec import Benchmark, Submission, read_recipe
from avalanche_vilco.core.diagnosis import Diagnosis
from avalanche_vilco.core.report import DataReport

N_CLASSES, WIDTH = 6, 8


class Vectors(Dataset):
    collate_fn = staticmethod(default_collate)

    def __init__(self, vectors: Tensor, labels: Tensor) -> None:
        self.vectors, self.labels = vectors, labels
        clip = SimpleNamespace(clip_id="the only one", duration_sec=0.0)
        self.samples = [SimpleNamespace(clip=clip)] * len(labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.vectors[index], self.labels[index]

    def subset(self, positions: Any) -> "Vectors":
        return Vectors(self.vectors[list(positions)], self.labels[list(positions)])

    def scrambled(self, seed: int) -> "Vectors":
        return Vectors(self.vectors.roll(len(self) // 2, dims=0), self.labels)

    def exemplar_bytes(self, positions: Any) -> int:
        return 4 * WIDTH * len(positions)


def generate(
    dataset_root: Path | str | None = None,
    *,
    n_experiences: Annotated[int, Meta(ge=1, le=N_CLASSES)] = 3,
) -> Scenario:
    draw = torch.Generator().manual_seed(0)
    means = 3 * torch.randn(N_CLASSES, WIDTH, generator=draw)
    datasets, parts = {}, {}
    for name, size in (("train", 10), ("test", 5)):
        labels = torch.arange(N_CLASSES).repeat_interleave(size)
        noise = torch.randn(len(labels), WIDTH, generator=draw)
        datasets[name] = Vectors(means[labels] + noise, labels)
        parts[name] = experience_dataset(
            datasets[name],
            range(len(labels)),
            class_indices=labels[:, None].tolist(),
            task_label=0,
        )
    by_class = class_incremental_benchmark(
        parts, num_experiences=n_experiences, class_order=[*range(N_CLASSES)]
    )
    info = {"benchmark": "vectors", "protocol": "exclusive", "protocol_version": "1"}
    info |= {"data": "embedded generated v1", "uses_ground_truth_at_test": False}
    streams = {name: list(stream) for name, stream in by_class.streams.items()}
    return Scenario(streams, datasets=datasets, info=info, report=DataReport())


class Linear(nn.Linear):
    def decode(self, output: Tensor, targets: Tensor) -> Tensor:
        return output.argmax(dim=1)


class Accuracy:
    names = ("accuracy",)

    def __init__(self, n_samples: int = 0) -> None:
        self.reset()

    def reset(self) -> None:
        self.found, self.wanted, self.update_called = [], [], False

    def update(self, predictions: Tensor, targets: Tensor) -> None:
        self.found += predictions.tolist()
        self.wanted += targets.tolist()
        self.update_called = True

    def compute(self) -> dict[str, float]:
        return {"accuracy": share_equal(self.found, self.wanted)}

    add, answers = update, lambda self: self.found


def share_equal(found: list[int], wanted: list[int]) -> float:
    return sum(a == b for a, b in zip(found, wanted, strict=True)) / len(wanted)


def document(data: Any, answers: Any, scenario: Any, *_: Any) -> dict[str, Any]:
    positions = [i for e in scenario.test_stream for i in e.dataset.positions]
    return {"answers": [a for _, a in sorted(zip(positions, answers, strict=True))]}


def score(result: Any, predictions: Any, annotations: Any) -> None:
    found, wanted = predictions.content["answers"], annotations.content["labels"]
    result.scores["accuracy"] = {"mean": share_equal(found, wanted)}


def role_of(content: Any) -> str | None:
    names = {"answers": "predictions", "labels": "annotations"}
    return next((names[key] for key in names if key in content), None)


def examine(root: Path, diagnosis: Diagnosis) -> None:
    if not (root / "labels.json").is_file():
        diagnosis.fault("labels", root / "labels.json", "no such file", "copy it")


BENCHMARK = Benchmark(
    name="vectors",
    version="1",
    paper="none",
    build=generate,
    models={"linear": partial(Linear, WIDTH, N_CLASSES)},
    criterion=nn.CrossEntropyLoss,
    metrics=lambda: [Accuracy()],
    main_metric="accuracy",
    future="value",
    recipe=read_recipe(Path(__file__).with_name("recipe.yaml")),
    annotation_files=("labels.json",),
    examine=examine,
    submission=Submission(
        task="vectors",
        collector=Accuracy,
        document=document,
        score=score,
        role_of=role_of,
    ),
)
