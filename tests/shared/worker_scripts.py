"""Scripts that tests run in processes, each worker of which writes what it has found into a file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from .tasks import PATIENCE


def run(*command: str, status: int = 0) -> str:
    """Run Python with these arguments, and check its exit status; return what it printed."""
    done = subprocess.run(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=3 * PATIENCE
    )
    assert done.returncode == status, done.stdout
    return done.stdout


def found(folder: Path, worker: int) -> Any:
    """Return what a worker has written."""
    return json.loads((folder / f"found-{worker}.json").read_text())
