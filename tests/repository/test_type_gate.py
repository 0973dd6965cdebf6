"""The types of the package are checked: `make types-package` finds mistakes by the settings of pyproject.toml."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYREFLY = Path(sys.executable).with_name("pyrefly")

# By the kind of the error, a line that has it where the types of all values have to be known, and elsewhere.
STRICT = {
    "implicit-any-parameter": "def f(x) -> int: return 1",
    "implicit-any-type-argument": "def f(x: list) -> int: return 1",
    "protected-access": "def f(x: A) -> int: return x._count",
    "unannotated-return": "def f(x: Any): return x",
    "unknown-variable-type": "found = untyped(1)",
}
EVERYWHERE = {
    "bad-argument-type": "len(1)",
    "bad-assignment": "found: int = 'one'",
    "bad-override": "class B(A):\n    def size(self, more: int) -> int: return more",
    "bad-return": "def f() -> int: return 'one'",
    "incompatible-comparison": "def f(x: int) -> bool: return x == 'one'",
    "missing-attribute": "def f(x: A | None) -> int: return x.size()",
    "missing-import": "import anabranch.nowhere",
    "unbound-name": "def f(x: int) -> int:\n    if x:\n        found = 1\n    return found",
    "unexpected-keyword": "A(sise=1)",
    "unused-ignore": "found = 1  # pyrefly: ignore[bad-return]",
}
HEAD = "from typing import Any\nfrom anabranch.own import A, untyped\n"
OWN = "class A:\n    _count = 1\n    def size(self) -> int: return 1\n\ndef untyped(x): return x\n"


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Return the kinds of the errors that pyrefly reports in each file of a package of mistakes."""
    root = tmp_path_factory.mktemp("clone")
    package = root / "build" / "src" / "anabranch"
    for folder in ("distribute", "engine", "examples", "framework", "layers", "optim"):
        (package / folder).mkdir(parents=True)
        for kind, text in {**STRICT, **EVERYWHERE}.items():
            (package / folder / f"{kind.replace('-', '_')}.py").write_text(f"{HEAD}{text}\n")
    for name in ("__init__", "__main__"):
        (package / f"{name}.py").write_text("")
    (package / "own.py").write_text(OWN)
    (root / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    command = [PYREFLY, "check", "--python-interpreter-path", sys.executable, "--output-format", "json"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    found: dict[str, set[str]] = {}
    for error in json.loads(done.stdout)["errors"]:
        found.setdefault(error["path"].rpartition("anabranch/")[2], set()).add(error["name"])
    return found


def _reported(kinds: dict[str, set[str]], folder: str, wanted: dict[str, str]) -> list[str]:
    return [kind for kind in wanted if kind in kinds.get(f"{folder}/{kind.replace('-', '_')}.py", ())]


@pytest.mark.parametrize("folder", ["distribute", "engine", "framework", "optim"])
def test_mistakes_are_reported(kinds: dict[str, set[str]], folder: str):
    assert _reported(kinds, folder, EVERYWHERE) == list(EVERYWHERE)


def test_layers_may_take_other_arguments_than_their_base(kinds: dict[str, set[str]]):
    assert _reported(kinds, "layers", EVERYWHERE) == [kind for kind in EVERYWHERE if kind != "bad-override"]


def test_unknown_types_are_reported_in_the_engine_alone(kinds: dict[str, set[str]]):
    assert _reported(kinds, "engine", STRICT) == list(STRICT)
    assert _reported(kinds, "framework", STRICT) == []


def _unused(text: str) -> list[str]:
    """Return the private functions and classes of a module that it does not use; a decorator may keep one."""
    words = Counter(re.findall(r"\b_\w+", text))
    own = re.findall(r"(?:\A|\n\n)(?:#.*\n)*(?:def|class) (_(?!_)\w+)", text)
    return [name for name in own if words[name] == 1]


def test_private_functions_and_classes_are_used():
    folders = [ROOT / name for name in ("distribute", "engine", "examples", "framework", "layers", "optim")]
    files = [file for folder in folders for file in folder.rglob("*.py")]

    assert _unused("def _f(): pass\n\n\nclass _A: pass\n\n\n@cache\ndef _g(): pass\n\n\n_A()\n") == ["_f"]
    assert [f"{file.relative_to(ROOT)}: {name}" for file in files for name in _unused(file.read_text())] == []


def test_make_checks_the_package():
    done = subprocess.run(["make", "--dry-run", "types-package"], cwd=ROOT, capture_output=True, text=True)

    assert "pyrefly check" in done.stdout, done.stderr
    assert (ROOT / "build" / "src" / "anabranch" / "engine").is_dir() or "ln -sfn" in done.stdout
