"""The examples in docstrings, in the README and in docs/ run and print what they say."""

import doctest
import importlib
import linecache
import re
from pathlib import Path
from types import FunctionType

import pytest
from _pytest.mark import ParameterSet

import anabranch as ab
from anabranch.engine.objects import trust

ROOT = Path(__file__).parents[2]
FOLDERS = ["engine", "layers", "optim", "distribute", "framework"]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def module_names(examples: bool) -> list[str]:
    """The modules whose files have examples, or the others: most of the time would go into looking for them."""
    # From the files, not from pkgutil: a module that cannot be imported is then one failing test, not no tests.
    files = [ROOT / "__init__.py", *[path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]]
    chosen = [path.relative_to(ROOT).with_suffix("") for path in files if (">>> " in path.read_text()) == examples]
    return sorted(".".join(["anabranch", *path.parts]).removesuffix(".__init__") for path in chosen)


@pytest.fixture(autouse=True)
def new_session(monkeypatch: pytest.MonkeyPatch):
    """Start with an empty graph, as a reader does; files that an example trusts are not trusted by the next.

    The debugger that doctest makes for each example looks whether any source file has changed that was ever read. That
    would take a sixth of the time, and none has.
    """
    ab.utils.clear_session(free_memory=False)
    monkeypatch.setattr(trust, "_code_allowed", False)
    monkeypatch.setattr(linecache, "checkcache", lambda filename=None: None)


def page_names() -> list[str]:
    pages = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    pages.remove("docs/tutorial.md")  # test_tutorial.py types it
    return ["README.md", *pages]


def pages() -> list[ParameterSet]:
    """Return the pages; those that show kernels compile them."""
    shown = ("docs/compiler.md", "docs/control_flow.md", "docs/explain.md")
    return [pytest.param(name, marks=[pytest.mark.kernels] if name in shown else []) for name in page_names()]


@pytest.mark.parametrize("name", module_names(examples=True))
def test_docstrings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    result = doctest.testmod(importlib.import_module(name), optionflags=OPTIONS)

    assert result.failed == 0


def test_the_other_modules_have_no_examples():
    found: list[str] = []
    for name in module_names(examples=False):
        own = [each for each in vars(importlib.import_module(name)).values() if _is_made_in(each, name)]
        methods = [each for made in own if isinstance(made, type) for each in vars(made).values()]
        own += [each for each in methods if isinstance(each, FunctionType | property | classmethod | staticmethod)]
        found += [f"{name}: {each}" for each in own if ">>> " in (each.__doc__ or "")]
    assert found == []


def _is_made_in(value: object, module: str) -> bool:
    return isinstance(value, type | FunctionType) and value.__module__ == module


@pytest.mark.parametrize("name", pages())
def test_pages(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    # The fence that ends a block would be taken for output of its last example.
    text = re.sub(r"^```.*$", "", (ROOT / name).read_text(), flags=re.MULTILINE)
    test = doctest.DocTestParser().get_doctest(text, {}, name, str(ROOT / name), 0)

    result = doctest.DocTestRunner(optionflags=OPTIONS).run(test)

    assert result.failed == 0


def test_readme_has_examples():
    text = (ROOT / "README.md").read_text()

    assert len(doctest.DocTestParser().get_examples(text)) > 10


def test_readme_says_what_computes_at_once_and_what_is_a_graph() -> None:
    """Readers from Keras and PyTorch expect the one, those from TensorFlow 1 the other."""
    text = (ROOT / "README.md").read_text()
    paragraph = text.partition("**At once, or as a graph.**")[2].partition("\n**")[0]

    assert "Operations compute at once" in paragraph
    assert "`ab.function` makes a compiled graph" in paragraph
    assert "(docs/values.md)" in paragraph
    assert any("ab.function(energy)" in example.source for example in doctest.DocTestParser().get_examples(paragraph))
