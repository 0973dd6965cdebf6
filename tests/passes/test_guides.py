"""The guides of docs/compiler.md, "Add a rule" and "Add a pass", followed literally in a copy of the passes."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
_COMMAND = "tests/passes/test_before_and_after.py"
_BLOCK = re.compile(r'^    ```(\w+) title="([^"]+)"\n(.*?)^    ```$', re.MULTILINE | re.DOTALL)
_WRITTEN = ", written"


def linked(folder: Path, source: Path, *, besides: set[str]) -> None:
    """Make `folder` with links to all that `source` holds but some names."""
    folder.mkdir()
    for path in source.iterdir():
        if path.name not in besides:
            (folder / path.name).symlink_to(path)


def changed(text: str, difference: str) -> str:
    """Apply a block of a guide that is a difference: its context must be there once."""
    lines = [(line[:1], line[1:]) for line in difference.splitlines()]
    before, after = ("".join(f"{line}\n" for mark, line in lines if mark in marks) for marks in (" -", " +"))
    assert text.count(before) == 1, f"this is not there once:\n{before}"
    return text.replace(before, after)


def test_a_rule_and_a_pass_are_added_by_the_guides(tmp_path: Path):
    package = tmp_path / "anabranch"
    linked(package, ROOT, besides={"engine", "tests", ".venv", ".git"})
    linked(package / "engine", ROOT / "engine", besides={"passes"})
    linked(package / "engine" / "passes", ROOT / "engine" / "passes", besides={"framework", "rewrites"})
    for room, edited in (("framework", "pipeline.py"), ("rewrites", "algebra.py")):
        linked(package / "engine/passes" / room, ROOT / "engine/passes" / room, besides={edited})
        path = Path("engine/passes", room, edited)
        (package / path).write_text((ROOT / path).read_text())
    linked(package / "tests", ROOT / "tests", besides={"passes"})
    (package / "tests" / "passes" / "specialise").mkdir(parents=True)
    (package / "tests" / "passes" / "expm1").mkdir()
    (package / _COMMAND).write_text((ROOT / _COMMAND).read_text())

    blocks = [
        (kind, title, textwrap.dedent(text))
        for kind, title, text in _BLOCK.findall((ROOT / "docs/compiler.md").read_text())
    ]
    for kind, title, text in blocks:
        path = package / title
        if kind == "diff":
            path.write_text(changed(path.read_text(), text))
        elif not title.endswith(_WRITTEN):
            path.write_text(text)
    call = [sys.executable, _COMMAND, "--update"]
    done = subprocess.run(
        call, cwd=package, env={"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr
    made = {path.stem: path.read_text() for path in (package / "tests" / "passes").glob("*/*.txt")}
    for _, title, text in blocks:
        if title.endswith(_WRITTEN):
            assert made[Path(title.removesuffix(_WRITTEN)).stem].endswith(f"\n\n{text}")
    assert len(made) == 5
    assert {name for name, text in made.items() if "--- left alone" in text} == {"product_of_abs", "needed_besides"}
