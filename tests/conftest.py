"""Fixtures shared by all tests."""

from pathlib import Path

import pytest


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


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Small tensors gain nothing from threads, and lose much on a busy machine."""
    import torch

    torch.set_num_threads(1)
