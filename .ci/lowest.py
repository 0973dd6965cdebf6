"""Prints the lowest versions of all dependencies that pyproject.toml declares, as constraints for pip.

python .ci/lowest.py > constraints.txt
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
# What these tests run with, which users of the package do not have, may be of any version.
TOOLS = {"dev", "cuda-check", "gpu", "ray"}


def constraints(project: dict[str, object]) -> list[str]:
    """Return ``name==version`` for each dependency that has a lowest version.

    Args:
        project: the table of the same name in pyproject.toml.
    """
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    required = list(project["dependencies"])  # pyright: ignore
    for name, own in extras.items():
        required += [] if name in TOOLS else own
    found: dict[str, str] = {}
    for each in required:
        match = re.match(r"([A-Za-z0-9_.-]+)\s*>=\s*([0-9.]+)", each)
        if match:
            found[match[1]] = f"{match[1]}=={match[2]}"
    return sorted(found.values())


if __name__ == "__main__":
    print("\n".join(constraints(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"])))
