from __future__ import annotations

import pytest
from shared.tasks import TOKEN


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tasks and clients of these tests know one token; the user's own file is left alone."""
    monkeypatch.setenv("ANABRANCH_TOKEN", TOKEN)
