"""Fixtures that all tests share."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of recorded traces and published figures beside the checkout; EXPERT_RESIDENCY_SHARED overrides."""
    default = Path(__file__).resolve().parents[1].parent / "shared"
    folder = Path(os.environ.get("EXPERT_RESIDENCY_SHARED", default))
    if not (folder / "traces").is_dir():
        pytest.skip(f"no recorded traces at {folder}")
    return folder
