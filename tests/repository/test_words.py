"""Docstrings open with a verb or a name; docstrings, comments and messages use the terms of docs/glossary.md."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("distribute", "engine", "examples", "framework", "layers", "optim", "tests")
HEADLESS = ("What", "Whether", "Of", "Which", "Where", "How", "Why", "That")
RETIRED = re.compile(r"\b(tells?|told|met|meets?|knows?|anew|lies?|had rather)\b", re.IGNORECASE)


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


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module that users may see: strings with a space in them that are no docstring."""
    tree = ast.parse(source)
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in statements:
            text = node.value if isinstance(node.value, str) else ""
            yield from [(node.lineno, text)] if " " in text else []


def headless(source: str) -> list[str]:
    """Return the docstrings that open with a word that gives no verb, each with its line."""
    if not any(f'"""{word} ' in source for word in HEADLESS):  # so that few files have to be parsed
        return []
    return [f"{line}: {text[:60]}" for line, text in docstrings(source) if text.split(maxsplit=1)[0] in HEADLESS]


def retired(source: str) -> list[str]:
    """Return the retired words in docstrings and comments, each with its line."""
    lines = [line for line in source.splitlines() if RETIRED.search(line)]
    texts = list(docstrings(source)) if lines else []
    if any("#" in line for line in lines):  # so that few files have to be read token by token
        texts.extend(comments(source))
    return [f"{line}: {word}" for line, text in texts for word in RETIRED.findall(text)]


def retired_in_messages(source: str) -> list[str]:
    """Return the retired words in messages, each with its line."""
    if not RETIRED.search(source):  # so that few files have to be parsed
        return []
    return [f"{line}: {word}" for line, text in messages(source) for word in RETIRED.findall(text)]


def sources(folder: str) -> dict[str, str]:
    paths = ROOT.glob("*.py") if folder == "." else (ROOT / folder).rglob("*.py")
    return {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in sorted(paths)}


@pytest.mark.parametrize("folder", [".", *FOLDERS])
def test_docstrings_open_with_a_verb_or_a_name(folder: str):
    texts = sources(folder)
    assert texts
    assert {name: found for name, source in texts.items() if (found := headless(source))} == {}


@pytest.mark.parametrize("folder", [".", *FOLDERS])
def test_the_words_are_those_of_the_field(folder: str):
    assert {name: found for name, source in sources(folder).items() if (found := retired(source))} == {}


@pytest.mark.parametrize("folder", [".", *[folder for folder in FOLDERS if folder != "tests"]])
def test_messages_use_the_words_of_the_field(folder: str):
    assert {name: found for name, source in sources(folder).items() if (found := retired_in_messages(source))} == {}


def test_what_is_looked_for_is_found():
    source = 'def f():\n    """Whether it is."""\n    # nobody knows\n\n\ndef g():\n    """Return what it is."""\n'
    assert headless(source) == ["1: Whether it is."]
    assert retired(source) == ["3: knows"]
    source = 'def f(x):\n    """It lies."""\n    told = {"lies": x}\n    raise ValueError(f"x={x} lies outside.")\n'
    assert retired_in_messages(source) == ["4: lies"]
