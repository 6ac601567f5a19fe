"""Fixtures that all tests share."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from expert_residency.policies import registry

# `ci` draws the same examples every time; `deep` (--hypothesis-profile deep) looks for new ones for many minutes.
settings.register_profile(
    "ci", max_examples=60, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("deep", max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci")


# Tables are read at a width that wraps nothing, whatever terminal or runner the tests were started from.
os.environ["COLUMNS"] = "200"


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of recorded traces and published figures beside the checkout; EXPERT_RESIDENCY_SHARED overrides."""
    default = Path(__file__).resolve().parents[1].parent / "shared"
    folder = Path(os.environ.get("EXPERT_RESIDENCY_SHARED", default))
    if not (folder / "traces").is_dir():
        pytest.skip(f"no recorded traces at {folder}")
    return folder


@pytest.fixture(autouse=True)
def _own_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test adopts is forgotten with it: other tests ask for all policies that there are."""
    monkeypatch.setattr(registry, "_adopted", registry.adopted())
