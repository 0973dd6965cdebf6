"""Docstrings open with a verb or a name; names, docstrings, comments and messages use docs/glossary.md's terms.

In the package, a docstring of a function or method opens with one of `VERBS`; a verb that is missing there is added.
That of a class, property or module may open with a name.
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
FOLDERS = ("distribute", "engine", "examples", "framework", "layers", "optim", "tests")
PACKAGE = (".", *[folder for folder in FOLDERS if folder not in ("examples", "tests")])
HEADLESS = ("What", "Whether", "Of", "Which", "Where", "How", "Why", "That")
_VERBS = """
Accept Accumulate Act Add Adjust Advance Agree Align Allocate Allow Announce Answer Append Apply Ask Assert Assign
Attend Average Batch Begin Bend Bind Blur Book Borrow Bring Broadcast Build Call Cancel Capture Carry Cast Change Check
Choose Clear Clip Close Collect Colour Combine Compare Compile Compute Concatenate Configure Connect Contract Convert
Convolve Copy Correlate Count Create Crop Cut Deal Decide Declare Decode Decompose Decorate Deliver Depend Dequeue
Derive Describe Differentiate Divide Do Double Draw Drop Eliminate Enable End Enqueue Enter Estimate Exchange Expand
Expect Explain Export Factorise Fail Fetch Fill Filter Find Finish Fit Flatten Flip Fold Follow Forget Format Free
Freeze Fuse Gather Generate Get Give Go Group Hand Handle Have Help Hold Import Infer Insert Interleave Interpolate
Invert Iterate Join Jump Keep Lay Lead Learn Leave Let Limit List Listen Load Lock Log Look Loop Lower Make Map Match
Measure Merge Minimise Move Multiply Name Narrow Normalise Note Notify Number Offer Open Optimise Overwrite Pack Pad
Pair Pick Pickle Place Plan Pool Predict Prefix Prepare Print Process Profile Promote Prove Prune Put Quantise Raise
Read Record Redraw Reduce Refuse Register Release Relieve Remember Remove Repeat Replace Report Reset Reshape Resize
Restart Restore Return Reverse Rewrite Round Run Sample Save Say Scale Scan Schedule Search See Seed Select Send Serve
Set Settle Share Shift Show Sink Solve Sort Split Spread Stack Start Stop Store Subtract Sum Surround Swap Take Test
Trace Train Transform Transpose Truncate Try Turn Undo Unpack Unroll Unstack Update Validate View Visit Wait Warn Watch
Weigh Widen Wrap Write Yield
"""
VERBS = frozenset(_VERBS.split())
# A function with a docstring, as the formatter lays it out: decorators, indent, name, first word of the docstring.
FUNCTION = re.compile(
    r"""
    ^((?:[ ]*@.*\n)*)                               # decorators
    ([ ]*)(?:async[ ])?def[ ](\w+)                  # indent and name
    (?:.*|.*\((?:[ ]*\#.*)?\n(?:(?!\2\)).*\n)*\2\).*)  # parameters, on one line or on several
    :(?:[ ]*\#.*)?\n
    \2[ ]{4}r?["]{3}(\S*)                           # docstring
    """,
    re.MULTILINE | re.VERBOSE,
)
RETIRED = re.compile(r"\b(tells?|told|met|meets?|knows?|anew|lies?|had rather)\b", re.IGNORECASE)

RETIRED_IN_NAMES = re.compile(r"(?<![a-z])(?:told|tells?|met|knows|lies?|let_go)(?![a-z])", re.IGNORECASE)


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


def verbless(source: str) -> list[str]:
    """Return the functions and methods, but for properties, whose docstrings open with no verb, each with its line."""
    found: list[str] = []
    for match in FUNCTION.finditer(source):
        decorators, _, name, word = match.groups()
        is_property = re.search(r"@[\w.]*property\b|@\w+\.(setter|deleter)\b", decorators)
        if not is_property and re.split(r"\W", word, maxsplit=1)[0] not in VERBS:
            found.append(f"{source.count(chr(10), 0, match.start(3)) + 1}: {name}: {word}")
    return found


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


def retired_in_names(source: str) -> list[str]:
    """Return the names of variables, functions and attributes with retired words, each with its line."""
    if not RETIRED_IN_NAMES.search(source):  # so that few files have to be read token by token
        return []
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    return [
        f"{token.start[0]}: {token.string}"
        for before, token in zip([tokens[0], *tokens], tokens, strict=False)
        if token.type == tokenize.NAME and RETIRED_IN_NAMES.search(token.string)
        if not (before.string == "." and token.string == "tell")  # the place in a file
    ]


def sources(folder: str) -> dict[str, str]:
    paths = ROOT.glob("*.py") if folder == "." else (ROOT / folder).rglob("*.py")
    names = {path.relative_to(ROOT): path for path in sorted(paths)}
    # The peers' environments, `.env` and its like, are among the benchmarks where `make peers` was run.
    shown = {name: path for name, path in names.items() if not any(part.startswith(".") for part in name.parts)}
    return {str(name): path.read_text("utf-8") for name, path in shown.items()}


@pytest.mark.parametrize("folder", [".", *FOLDERS])
def test_docstrings_open_with_a_verb_or_a_name(folder: str):
    texts = sources(folder)
    assert texts
    assert {name: found for name, source in texts.items() if (found := headless(source))} == {}


@pytest.mark.parametrize("folder", PACKAGE)
def test_docstrings_of_functions_open_with_a_verb(folder: str):
    assert {name: found for name, source in sources(folder).items() if (found := verbless(source))} == {}


@pytest.mark.parametrize("folder", [".", *FOLDERS])
def test_the_words_are_those_of_the_field(folder: str):
    assert {name: found for name, source in sources(folder).items() if (found := retired(source))} == {}


@pytest.mark.parametrize("folder", [".", *[folder for folder in FOLDERS if folder != "tests"]])
def test_messages_use_the_words_of_the_field(folder: str):
    assert {name: found for name, source in sources(folder).items() if (found := retired_in_messages(source))} == {}


@pytest.mark.parametrize("folder", [".", *[folder for folder in FOLDERS if folder != "tests"]])
def test_names_use_the_words_of_the_field(folder: str):
    assert {name: found for name, source in sources(folder).items() if (found := retired_in_names(source))} == {}


# The words that are right in docs: of people, as a head of tables, and where the words themselves are listed.
NOT_OF_CODE = re.compile(r"\b(users|you) know\b|\| met \||code does not$|tell, know or meet, and nothing lies")


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_docs_use_the_words_of_the_field(page: Path):
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    lines = [line for line in text.splitlines() if RETIRED.search(NOT_OF_CODE.sub("", line))]
    assert lines == []


def test_what_is_looked_for_is_found():
    source = 'def f():\n    """Whether it is."""\n    # nobody knows\n\n\ndef g():\n    """Return what it is."""\n'
    assert headless(source) == ["1: Whether it is."]
    assert retired(source) == ["3: knows"]
    source = 'def f(x):\n    """It lies."""\n    told = {"lies": x}\n    raise ValueError(f"x={x} lies outside.")\n'
    assert retired_in_messages(source) == ["4: lies"]
    assert retired_in_names(source) == ["3: told"]
    assert retired_in_names("file.tell()\nclient.tell(is_told_of)\n") == ["2: is_told_of"]


def test_functions_without_a_verb_are_found():
    source = '''
class Shape:
    """The shape of a tensor."""

    @property
    def rank(self) -> int:
        """The number of axes."""

    @cached_property
    def size(self) -> int:
        """The number of elements."""

    @rank.setter
    def rank(self, value: int) -> None:
        """The number of axes."""

    @staticmethod
    def axes(  # of any shape
        shape: tuple[int, ...],
        first: int = len(()),
    ) -> list[int]:
        """The numbers of the axes."""

    async def wait(self) -> None:  # for whoever asks
        r"""``wait`` until it is known."""

        def inner(x): ...

    def undocumented(self):
        return (
            """The text."""
        )

    def known(self):
        """Return, if it is known, the shape."""
'''
    assert verbless(source) == ["18: axes: The", "24: wait: ``wait``"]


def terms() -> list[list[str]]:
    """The rows of docs/glossary.md: term, meaning, source, name in the code."""
    lines = [line for line in (ROOT / "docs" / "glossary.md").read_text("utf-8").splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if row[0] != "term"]


def test_each_term_of_the_glossary_has_a_meaning_and_a_source():
    assert len(terms()) > 50
    assert [row for row in terms() if len(row) != 4 or not row[1] or not row[2]] == []


def test_each_pass_has_a_term_in_the_glossary():
    from anabranch.engine.passes.framework.pipeline import PIPELINE

    named = {name for row in terms() for name in re.findall(r"`(\w+)`", row[3])}
    assert [each.name for each in PIPELINE if each.name not in named] == []
