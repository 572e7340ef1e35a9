"""Time reading a window of features from every store, beside a plain memory copy.

``python benchmarks/speed/features.py`` prints Markdown tables. Cold means that the
system was asked to drop the files from its page cache and that the store is opened
anew; below a virtual machine, the host may still hold them.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import lmdb
import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from avalanche_vilco.data.features import (
    CachedFeatures,
    GridFeatures,
    StoredFeatures,
    open_features,
    pack_features,
    resize_steps,
)

Clips = Mapping[str, Tensor]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Names of glibc's ``malloc.h``."""


@dataclass(frozen=True)
class Times:
    """Median milliseconds of one read."""

    cpu: float
    wall: float


def write_files(save: Callable[[Path, Tensor], None], suffix: str) -> Callable:
    def write(clips: Clips, path: Path) -> Path:
        path.mkdir()
        for clip_id, features in clips.items():
            save(path / f"{clip_id}{suffix}", features)
        return path

    return write


def write_packed(clips: Clips, path: Path, dtype: torch.dtype) -> Path:
    packed = path.with_suffix(".safetensors")
    return pack_features(_InMemory(clips), clips, packed, dtype=dtype)


def write_raw_lmdb(clips: Clips, path: Path) -> Path:
    return pack_features(_InMemory(clips), clips, path.with_suffix(".lmdb"))


def write_npz_lmdb(save: Callable[..., None]) -> Callable:
    def write(clips: Clips, path: Path) -> Path:
        n_bytes = sum(features.nbytes for features in clips.values())
        with lmdb.open(str(path), map_size=n_bytes * 2) as environment:
            for clip_id, features in clips.items():
                buffer = io.BytesIO()
                save(buffer, token_features=features.numpy())
                with environment.begin(write=True) as transaction:
                    transaction.put(clip_id.encode(), buffer.getvalue())
        return path

    return write


WRITERS: dict[str, Callable[[Clips, Path], Path]] = {
    "one safetensors file": lambda c, p: write_packed(c, p, torch.float32),
    "one safetensors file, float16": lambda c, p: write_packed(c, p, torch.float16),
    "folder of .safetensors": write_files(
        lambda path, x: save_file({"features": x}, path), ".safetensors"
    ),
    "folder of .npy": write_files(lambda path, x: np.save(path, x.numpy()), ".npy"),
    "folder of .pt": write_files(lambda path, x: torch.save(x, path), ".pt"),
    "LMDB, raw": write_raw_lmdb,
    "LMDB, npz": write_npz_lmdb(np.savez),
    "LMDB, compressed npz": write_npz_lmdb(np.savez_compressed),
}


class _InMemory(StoredFeatures):
    """Where packing reads from."""

    def __init__(self, clips: Clips) -> None:
        super().__init__("memory")
        self.clips = clips

    def locate(self, clip_id: str) -> str:
        return f"memory[{clip_id}]"

    def ids(self) -> Collection[str]:
        return self.clips.keys()

    def _stored(self, clip_id: str) -> Tensor:
        return self.clips[clip_id]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=6)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--channels", type=int, default=4096)
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    clips = {
        f"clip{i}": torch.randn(options.steps, options.channels)
        for i in range(options.clips)
    }
    print_machine()
    with tempfile.TemporaryDirectory(prefix="feature-speed-") as folder:
        print_reading(clips, Path(folder), options.window, options.rounds)
        print_resizing(clips, Path(folder), options.window, options.rounds)


def keep_freed_memory() -> None:
    """Have the allocator hand out the same memory again, where it is glibc's.

    By default it returns some of it to the system, and then whether a copy or a read
    pays for fresh pages, which cost more than the copy, is left to chance.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 2**25)
        mallopt(_TRIM_THRESHOLD, 2**30)


def print_machine() -> None:
    print(
        f"{os.cpu_count()} cores ({platform.machine()}), one thread, torch "
        f"{torch.__version__}, load average {os.getloadavg()[0]:.1f}\n"
    )


def print_reading(clips: Clips, folder: Path, window: int, rounds: int) -> None:
    print(
        "| store | MB a clip | warm CPU | warm wall | x copy | cold CPU | cold wall |"
    )
    print("|---|---|---|---|---|---|---|")
    (copy,) = median_times([copier(clips, window)], clips, rounds)
    print(f"| memory copy | | {copy.cpu:.1f} | {copy.wall:.1f} | 1.0 | | |")
    for name, write in WRITERS.items():
        path = write(clips, folder / "store")
        print(f"| {name} | {reading_cells(path, clips, window, rounds)} |")
        remove(path)


def copier(clips: Clips, window: int) -> Callable[[str], Tensor]:
    return lambda clip_id: clips[clip_id][:window].clone()


def reading_cells(path: Path, clips: Clips, window: int, rounds: int) -> str:
    cold = [cold_time(path, clip_id, window) for clip_id in clips]
    store = open_features(path)
    check(store.read("clip0", 0, window), clips["clip0"][:window])
    reads = [copier(clips, window), lambda clip_id: store.read(clip_id, 0, window)]
    copy, warm = median_times(reads, clips, rounds)
    size = sum(file.stat().st_size for file in files_of(path)) / len(clips) / 1e6
    cold_cpu = statistics.median(time.cpu for time in cold)
    cold_wall = statistics.median(time.wall for time in cold)
    return (
        f"{size:.1f} | {warm.cpu:.1f} | {warm.wall:.1f} | {warm.cpu / copy.cpu:.1f} | "
        f"{cold_cpu:.1f} | {cold_wall:.1f}"
    )


def check(read: Tensor, expected: Tensor) -> None:
    # As much as float16 loses is no fault.
    if not torch.allclose(read, expected, atol=4e-3):
        raise RuntimeError("a store gave other features than were written")


def cold_time(path: Path, clip_id: str, window: int) -> Times:
    """One read by a new store of files that are not in the page cache."""
    for file in files_of(path):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return timed(lambda: open_features(path).read(clip_id, 0, window))


def print_resizing(clips: Clips, folder: Path, steps: int, rounds: int) -> None:
    print(f"\n| whole clip on a grid of {steps} steps | CPU | wall |\n|---|---|---|")

    def interpolated(clip_id: str) -> Tensor:
        channels_first = clips[clip_id].T[None]
        resized = F.interpolate(
            channels_first, size=steps, mode="linear", align_corners=False
        )
        return resized[0].T.contiguous()

    def resized(clip_id: str) -> Tensor:
        return resize_steps(clips[clip_id], steps)

    torch.testing.assert_close(resized("clip0"), interpolated("clip0"))
    packed = open_features(write_packed(clips, folder / "store", torch.float32))
    grid = GridFeatures(packed, steps)
    once = pack_features(grid, clips, folder / "grid.safetensors")
    cached = CachedFeatures(GridFeatures(packed, steps), 2**40)
    rows: Sequence[tuple[str, Callable[[str], Tensor]]] = [
        ("F.interpolate, in memory", interpolated),
        ("resize_steps, in memory", resized),
        ("GridFeatures from one safetensors file", grid.read),
        ("GridFeatures, cached in memory", cached.read),
        ("resized once, packed to one safetensors file", open_features(once).read),
    ]
    for name, read in rows:
        (times,) = median_times([read], clips, rounds)
        print(f"| {name} | {times.cpu:.1f} | {times.wall:.1f} |")


def median_times(
    reads: Sequence[Callable[[str], Tensor]], clip_ids: Clips, rounds: int
) -> list[Times]:
    """Medians over clips and rounds after a round to warm up.

    Several reads take turns, so that a busy machine slows all of them alike.
    """
    for clip_id in clip_ids:
        for read in reads:
            read(clip_id)
    turns = [
        [timed(partial(read, clip_id)) for read in reads]
        for _ in range(rounds)
        for clip_id in clip_ids
    ]
    return [
        Times(
            statistics.median(time.cpu for time in one),
            statistics.median(time.wall for time in one),
        )
        for one in zip(*turns, strict=True)
    ]


def timed(read: Callable[[], object]) -> Times:
    cpu, wall = time.process_time(), time.perf_counter()
    read()
    return Times((time.process_time() - cpu) * 1e3, (time.perf_counter() - wall) * 1e3)


def files_of(path: Path) -> list[Path]:
    return [path] if path.is_file() else [p for p in path.iterdir() if p.is_file()]


def remove(path: Path) -> None:
    path.unlink() if path.is_file() else shutil.rmtree(path)


if __name__ == "__main__":
    main()
