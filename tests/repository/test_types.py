"""Editors find the types of what users write: right lines are accepted, mistakes are reported, nothing is `Any`.

The same with mypy, and with the wheel in place of the folders, is in test_packaging.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from shared import type_checks

from anabranch import layers

ROOT = Path(__file__).parents[2]
SCRIPTS = {
    "mistakes.py": type_checks.mistakes_script(),
    "revealed.py": type_checks.types_script(),
    "names.py": type_checks.names_script(),
    "classes.py": "from anabranch import layers\n" + "".join(f"reveal_type(layers.{n})\n" for n in layers.__all__),
    "right.py": (ROOT / "tests" / "framework" / "test_user_types.py").read_text(),
}
RULES = {rule for rule, _ in type_checks.MISTAKES.values()}
FIRST = type_checks.IMPORTS.count("\n") + 1


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, int, str, str]]:
    """Return what pyright says, with the folders of this repository as the installed package."""
    folder = tmp_path_factory.mktemp("script")
    packages = type_checks.site_packages(folder / "environment")
    (packages / "anabranch").symlink_to(ROOT)
    (packages / "numpy").symlink_to(Path(np.__file__).parent)
    return type_checks.pyright(folder, folder / "environment", SCRIPTS)


@pytest.mark.xdist_group("types")
def test_mistakes_are_reported_each_in_its_line(reports: list[tuple[str, int, str, str]]):
    found = {line: rule for script, line, rule, _ in reports if script == "mistakes.py" and rule in RULES}
    lines = dict(enumerate(type_checks.MISTAKES, FIRST))

    assert {text: found.get(line) for line, text in lines.items()} == {
        text: rule for text, (rule, _) in type_checks.MISTAKES.items()
    }
    assert min(found) >= FIRST


@pytest.mark.xdist_group("types")
def test_what_users_make_has_its_class(reports: list[tuple[str, int, str, str]]):
    found = {line: message.split('"')[-2] for script, line, _, message in reports if script == "revealed.py"}
    expected = {line: name.rpartition(".")[2] for line, name in enumerate(type_checks.TYPES.values(), FIRST)}

    assert found == expected


@pytest.mark.xdist_group("types")
@pytest.mark.parametrize("script", ["names.py", "right.py"])
def test_what_works_is_accepted(reports: list[tuple[str, int, str, str]], script: str):
    lines = SCRIPTS[script].splitlines()
    found = [(lines[line - 1], rule) for name, line, rule, _ in reports if name == script]

    assert [each for each in found if each[1] != "reportUnusedExpression"] == []


@pytest.mark.xdist_group("types")
def test_every_layer_is_a_class(reports: list[tuple[str, int, str, str]]):
    found = dict(message.split('"')[1:4:2] for script, _, _, message in reports if script == "classes.py")
    classes = {name for name in layers.__all__ if isinstance(getattr(layers, name), type)}

    assert {found[f"layers.{name}"] for name in classes} == {f"type[{getattr(layers, n).__name__}]" for n in classes}


def test_few_lines_are_hidden_from_pyrefly():
    folders = [ROOT / name for name in ("engine", "layers", "optim", "distribute", "framework")]
    lines = [line for folder in folders for file in folder.rglob("*.py") for line in file.read_text().splitlines()]
    hidden = [line for line in lines if re.search(r"#.*(pyrefly|type|pyright): *ignore", line)]

    assert len(hidden) <= 31
    assert [line for line in hidden if "pyrefly: ignore[" not in line] == []


def test_few_values_may_be_anything():
    """`Any` is for what users hand over; what is passed on unread is an `object`."""
    files = [file for name in ("framework", "layers") for file in (ROOT / name).rglob("*.py")]

    assert sum(len(re.findall(r"\bAny\b", file.read_text())) for file in files) <= 1084


def test_checkers_are_there():
    assert [name for name in ("pyrefly", "pyright", "mypy") if find_spec(name) is None] == []
