"""The clients in docs/serving.md run as they are there, except for the ports."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from shared.serving_clients import python_of

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    ("word", "client"),
    [
        ("urlopen(", None),
        pytest.param("tritonclient.grpc", "triton", marks=pytest.mark.slow),
        pytest.param("from kserve", "kserve", marks=pytest.mark.slow),
    ],
)
def test_client(served: Any, word: str, client: str | None) -> None:
    (code,) = [block for block in BLOCKS if word in block]
    code = code.replace("http://127.0.0.1:8501", served.server.rest_url)
    code = code.replace("127.0.0.1:8500", served.server.grpc_address)
    python = sys.executable if client is None else python_of(client)
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("[[[0.")
    assert found.stdout.endswith("]]]\n")
