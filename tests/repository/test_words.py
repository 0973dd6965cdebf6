"""Docstrings of the files that are listed here open with a verb or a name, and use the terms of docs/glossary.md.

Files are added when they are next written; the list only grows.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECKED = (
    "engine/passes/framework/driver.py",
    "engine/passes/fusion/epilogues.py",
    "engine/passes/fusion/materialise_transposes.py",
    "engine/passes/framework/limits.py",
    "engine/passes/loops/tables.py",
    "engine/passes/framework/observe.py",
    "engine/passes/framework/patterns.py",
    "engine/passes/framework/pipeline.py",
    "engine/passes/framework/rewriter.py",
    "engine/passes/rewrites/row_updates.py",
    "engine/passes/rewrites/same_shapes.py",
    "engine/passes/rewrites/slices.py",
    "engine/passes/framework/verify.py",
    "engine/testing/bisection.py",
    "tests/programs/chosen.py",
    "tests/programs/describe_step.py",
    "tests/programs/same.py",
)
OPENINGS = (  # folders: of these the openings of docstrings are checked
    "distribute",
    "engine/autodiff",
    "engine/checkpoint",
    "engine/control_flow",
    "engine/graph",
    "engine/lower",
    "engine/machine",
    "engine/objects",
    "engine/ops",
    "engine/passes",
    "engine/queues",
    "engine/readers",
    "engine/runtime",
    "engine/saving",
    "engine/summaries",
    "engine/testing",
    "engine/tracing",
)
HEADLESS = ("What", "Whether", "Of", "Which", "Where", "How", "Why", "That")
RETIRED = re.compile(r"\b(tells?|told|met|meets?|knows?|anew|lies?|had rather|nothing to tell)\b", re.IGNORECASE)


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text


def comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def headless(source: str) -> list[str]:
    """The lines of docstrings that open with a word that gives no verb."""
    return [f"{line}: {text[:60]}" for line, text in docstrings(source) if text.split(maxsplit=1)[0] in HEADLESS]


def retired(source: str) -> list[str]:
    """The retired words in docstrings and comments, each with its line."""
    texts = [*docstrings(source), *comments(source)]
    return [f"{line}: {word}" for line, text in texts for word in RETIRED.findall(text)]


@pytest.mark.parametrize("name", CHECKED)
def test_docstrings_open_with_a_verb_or_a_name(name: str):
    assert headless((ROOT / name).read_text()) == []


@pytest.mark.parametrize("folder", OPENINGS)
def test_docstrings_of_folders_open_with_a_verb_or_a_name(folder: str):
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert {str(path.relative_to(ROOT)): found for path in paths if (found := headless(path.read_text()))} == {}
    assert paths


@pytest.mark.parametrize("name", CHECKED)
def test_the_words_are_those_of_the_field(name: str):
    assert retired((ROOT / name).read_text()) == []


def test_what_is_looked_for_is_found():
    source = 'def f():\n    """Whether it is."""\n    # nobody knows\n\n\ndef g():\n    """Return what it is."""\n'
    assert headless(source) == ["1: Whether it is."]
    assert retired(source) == ["3: knows"]
