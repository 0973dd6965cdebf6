"""The guides of docs/compiler.md, "Add a rule", "Add a pass" and "Add an op", followed literally in a copy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable
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


def make_own(package: Path, path: str) -> Path:
    """Replace the link of a file, and of each folder that it is in, by a copy and by folders of links."""
    folder = package
    for part in Path(path).parent.parts:
        folder /= part
        if folder.is_symlink():
            source = folder.resolve()
            folder.unlink()
            linked(folder, source, besides=set())
    file = package / path
    if file.is_symlink():
        text = file.read_text()
        file.unlink()
        file.write_text(text)
    return file


def guides() -> list[tuple[str, str, str]]:
    """The blocks of the guides that are to be written: the kind of each, its file, and the text."""
    found = _BLOCK.findall((ROOT / "docs/compiler.md").read_text())
    return [(kind, title, textwrap.dedent(text)) for kind, title, text in found]


def follow(package: Path, blocks: Iterable[tuple[str, str, str]]) -> None:
    for kind, title, text in blocks:
        path = make_own(package, title)
        path.write_text(changed(path.read_text(), text) if kind == "diff" else text)


def run(package: Path, *command: str) -> None:
    """Run Python in the copy, with a cache of its own for kernels that nothing else uses."""
    own = {"PYTHONPATH": f"{package.parent}:{package / 'tests'}", "ANABRANCH_CACHE_DIR": str(package.parent / "cache")}
    environment = {**os.environ, **own, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *command], cwd=package, env=environment, capture_output=True, text=True)
    assert not done.returncode, done.stdout + done.stderr


def test_a_rule_and_a_pass_are_added_by_the_guides(tmp_path: Path):
    package = tmp_path / "anabranch"
    linked(package, ROOT, besides={"tests", ".venv", ".git"})
    linked(package / "tests", ROOT / "tests", besides={"passes"})
    (package / "tests" / "passes" / "specialise").mkdir(parents=True)
    (package / "tests" / "passes" / "expm1").mkdir()
    (package / _COMMAND).write_text((ROOT / _COMMAND).read_text())

    blocks = [block for block in guides() if block[1].startswith(("engine/passes/", "tests/passes/"))]
    follow(package, [block for block in blocks if not block[1].endswith(_WRITTEN)])
    run(package, _COMMAND, "--update")
    made = {path.stem: path.read_text() for path in (package / "tests" / "passes").glob("*/*.txt")}
    for _, title, text in blocks:
        if title.endswith(_WRITTEN):
            assert made[Path(title.removesuffix(_WRITTEN)).stem].endswith(f"\n\n{text}")
    assert len(made) == 5
    left_alone = {name: text for name, text in made.items() if "--- left alone" in text}
    assert left_alone.keys() == {"product_of_abs", "needed_besides"}
    assert all(text.startswith("# ") for text in left_alone.values()), "they say why"


CHECKED = """
import doctest, runpy
import anabranch as ab
from anabranch.engine.ops.arrays import axes
from natives.loops import check, draw, repeated

bodies = runpy.run_path("tests/engine/test_native_moves.py")["BODIES"]
check(repeated(bodies["alternating signs"], 400), draw(4, 6))
ab.testing.check_op(axes.AlternateSigns, verbose=False)
assert not doctest.testmod(axes).failed
"""


def test_an_op_with_machine_code_is_added_by_the_guide(tmp_path: Path):
    package = tmp_path / "anabranch"
    linked(package, ROOT, besides={".venv", ".git"})
    blocks = [block for block in guides() if not block[1].startswith(("engine/passes/", "tests/passes/"))]
    assert len(blocks) == 5
    follow(package, blocks)
    run(package, "-c", CHECKED)
