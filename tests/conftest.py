"""Fixtures shared by all tests."""

import os
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

# For processes that tests start; torch is not loaded yet.
os.environ["OMP_NUM_THREADS"] = "1"

# Examples share a test's fixtures, and a busy machine takes its time.
settings.register_profile(
    "ours", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("ours")

Once = Callable[[str, Callable[[Path], Any]], Path]


class NoiseFeatures:
    """Noise of the length that a clip asks for, one seed a clip."""

    width = 8

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}

    def shape(self, clip_id: str) -> tuple[int, int]:
        return self.steps[clip_id], self.width

    def read(self, clip_id: str, start: int = 0, stop: int | None = None) -> Any:
        import torch

        draw = torch.Generator().manual_seed(zlib.crc32(clip_id.encode()))
        return torch.randn(*self.shape(clip_id), generator=draw)[start:stop]

    def missing(self, clip_ids: Iterable[str]) -> list[str]:
        return []

    def preflight(self, expected_steps: Mapping[str, float], **options: Any) -> None:
        self.steps = {i: round(steps) for i, steps in expected_steps.items()}

    def time_scale(self, clip_id: str) -> float:
        return 1.0

    def locate(self, clip_id: str) -> str:
        return clip_id


@pytest.fixture(scope="session")
def noise_features() -> type[NoiseFeatures]:
    """A store of every clip, of the length that is asked for; call it."""
    return NoiseFeatures


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Small tensors gain nothing from threads, and lose much on a busy machine."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is remembered of the tests' files is not left in the user's cache."""
    from avalanche_vilco.core import remembered

    remembered.FOLDER = str(tmp_path_factory.mktemp("remembered"))


@pytest.fixture(scope="session")
def flagged() -> Callable[..., Path]:
    """Writes a copy of an mp4 file with other flags in its header; the file must have
    been written by PyAV."""

    def write(
        source: Path,
        copy: Path,
        matrix: tuple[float, float, float, float] = (1, 0, 0, 1),
        skipped: int = 0,
    ) -> Path:
        """Display matrix (a, b, c, d), and time stamps that the edit list moves by."""
        content = bytearray(source.read_bytes())
        a, b, c, d = (round(one * 2**16) for one in matrix)
        at = content.index(b"tkhd") + 44
        struct.pack_into(">9i", content, at, a, b, 0, c, d, 0, 0, 0, 1 << 30)
        at = content.index(b"elst") + 16
        (start,) = struct.unpack_from(">i", content, at)
        struct.pack_into(">i", content, at, start + skipped)
        copy.write_bytes(content)
        return copy

    return write


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder with real annotation files and oracles, beside the checkout."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip(
            "needs the 'shared' folder (real annotations, oracles) "
            "beside the checkout; stand-ins in tests/ cover the code"
        )
    return folder


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """Makes a folder by its name once for all processes that run tests.

    Tests copy it to change it.
    """
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent

    def folder(name: str, make: Callable[[Path], Any]) -> Path:
        path, made = base / name, base / f"{name}.made"
        with FileLock(base / f"{name}.lock"):
            if not made.exists():
                make(path)
                made.touch()
        return path

    return folder


@pytest.fixture(scope="session")
def mq_root(once: Once) -> Path:
    """A generated data root: ten queries in five groups, 20 + 10 annotated clips and 2
    without labels."""
    from avalanche_vilco.benchmarks.vilco_mq.embedded import MiniMQConfig

    sizes = {"n_train": 20, "n_val": 10, "n_test": 2, "group_size": 2}
    least = {"min_train_clips": 2, "min_val_clips": 1}
    times = {"clip_sec": (40.0, 60.0), "median_window_sec": 4.0}
    return once("mq", MiniMQConfig(**sizes, **least, **times).generate)


@pytest.fixture(scope="session")
def nlq_root(once: Once) -> Path:
    """Generated language queries: 13 templates, 12 + 6 annotated clips and 2 without
    windows."""
    from avalanche_vilco.benchmarks.vilco_nlq.embedded import MiniNLQConfig

    sizes = {"n_train": 12, "n_val": 6, "n_test": 2, "queries_per_clip": 8.0}
    least = {"min_train_queries": 5, "min_val_queries": 3}
    return once("nlq", MiniNLQConfig(**sizes, **least, clip_sec=(40.0, 60.0)).generate)


@pytest.fixture(scope="session")
def vq_root(once: Once) -> Path:
    """Generated visual queries: small videos of small objects, 10 + 5 clips and one
    without tracks, three queries in each."""
    from avalanche_vilco.benchmarks.vilco_vq.embedded import MiniVQConfig

    sizes = {"n_train": 10, "n_val": 5, "n_test": 1, "queries_per_clip": 3}
    pictures = {"frame_size": (48, 64), "object_pixels": (10.0, 16.0)}
    lengths = {"clip_frames": (40, 50), "track_frames": (4, 8)}
    return once("vq", MiniVQConfig(**sizes, **pictures, **lengths).generate)


@pytest.fixture(scope="session")
def finished_runs(mq_root: Path, once: Once) -> Path:
    """Folder of runs of one epoch, ``<strategy>/seed<seed>``: naive and replay with two
    seeds, the upper bound with one."""
    from avalanche_vilco.experiments.run import run

    def make(folder: Path) -> None:
        jobs = [("naive", 0), ("naive", 1), ("replay", 0), ("replay", 1)]
        for strategy, seed in [*jobs, ("upper_bound", 0)]:
            run(
                "vilco_mq",
                strategy,
                seed,
                epochs=1,
                strategy_options={"mem_size": 3} if strategy == "replay" else {},
                benchmark_options={"dataset_root": mq_root},
                output=folder / strategy / f"seed{seed}",
                echo=lambda line: None,
            )

    return once("finished_runs", make)
