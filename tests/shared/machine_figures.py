"""Have a test go by other figures of the machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from anabranch.engine.common import machine_profile


def assume(monkeypatch: pytest.MonkeyPatch, **figures: Any) -> None:
    """Replace figures of the machine's profile until `monkeypatch` takes it back."""
    known = machine_profile.machine_profile()
    monkeypatch.setattr(machine_profile.Current, "profile", replace(known, **figures))
