"""Clients of others, each in an environment of its own: tritonclient and KServe's, by each of their protocols."""

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.served_models import some_text
from shared.serving_clients import python_of


@pytest.mark.parametrize(
    ("client", "script", "protocol"),
    [
        ("triton", "of_triton.py", "http"),
        ("triton", "of_triton.py", "grpc"),
        ("triton", "of_triton_aio.py", "http"),
        ("triton", "of_triton_aio.py", "grpc"),
        ("kserve", "of_kserve.py", "v1"),
        ("kserve", "of_kserve.py", "v2"),
        ("kserve", "of_kserve.py", "grpc"),
    ],
)
@pytest.mark.slow
def test_answers_are_those_of_the_model(served: Any, client: str, script: str, protocol: str, tmp_path: Path) -> None:
    python, x = python_of(client), some_text(3, 7)
    np.save(tmp_path / "x.npy", x)
    url = served.server.rest_url
    address = {"grpc": served.server.grpc_address, "http": url.removeprefix("http://")}.get(protocol, url)
    paths = [str(tmp_path / name) for name in ("x.npy", "y.npy")]
    command = [python, str(Path(__file__).parent / "clients" / script), protocol, address, *paths]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    expected = served.letters.predict(x, verbose=0)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, rtol=1e-5, atol=1e-7)
