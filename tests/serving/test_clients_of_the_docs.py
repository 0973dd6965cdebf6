"""The clients in docs/serving.md run as they are there, except for the ports."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from shared.serving_clients import triton_python

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("word", "ends"), [("urlopen(", "]]]\n"), ("tritonclient.grpc", "]]]\n")])
def test_client(served: Any, word: str, ends: str) -> None:
    (code,) = [block for block in BLOCKS if word in block]
    code = code.replace("http://127.0.0.1:8501", served.server.rest_url)
    code = code.replace("127.0.0.1:8500", served.server.grpc_address)
    python = triton_python() if "triton" in word else sys.executable
    if python is None:
        pytest.skip("tritonclient is not installed, and ANABRANCH_TRITON_PYTHON names no Python that has it")
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("[[[0.")
    assert found.stdout.endswith(ends)
