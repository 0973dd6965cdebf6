"""The parts of the documentation's site that .ci/site makes: every public name has its place and its signature."""

import ast
import importlib.util
import inspect
import json
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import anabranch as ab

SITE = Path(__file__).parents[2] / ".ci" / "site"
pytest.importorskip("mkdocs")


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"site_{name}", SITE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    return load("pages")


@pytest.fixture(scope="module")
def reference(pages: ModuleType) -> dict[str, str]:
    return pages.reference()


def test_versions_are_listed_newest_release_first(tmp_path: Path) -> None:
    versions = load("versions")
    assert [versions.folder_of(each) for each in ("0.2.0", "0.10.3", "1.0.0.dev0", "0.3.0rc1")] == [
        *("0.2", "0.10"),
        *("dev", "dev"),
    ]
    for name in ("dev", "0.2", "0.10", "0.9"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").write_text("")
    assert versions.write_versions(tmp_path) == ["0.10", "0.9", "0.2", "dev"]
    entries = json.loads((tmp_path / "versions.json").read_text())
    assert entries[0] == {"version": "0.10", "title": "0.10", "aliases": ["latest"]}
    assert [each["aliases"] for each in entries[1:]] == [[]] * 3
    assert 'url=0.10/"' in (tmp_path / "index.html").read_text()


def test_every_public_name_is_listed_and_explained_once(pages: ModuleType, reference: dict[str, str]) -> None:
    whole = "\n".join(reference.values())
    entries = Counter(first or second for first, second in re.findall(r"::: (\S+)\n|\{ #(\S+) \}", whole))
    seen: set[str] = set()
    for path, module in pages.public_modules().items():
        for name in pages.public_names(path, module):
            seen.add(name.anchor)
            assert entries[name.anchor] == 1, (name.public, entries[name.anchor])
    assert len(seen) > 800


@pytest.mark.parametrize(
    "name",
    ["layers.Dense", "ops.matmul", "losses.MeanSquaredError", "ops.while_loop", "callbacks.CSVLogger", "tf.nn.relu"],
)
def test_names_that_users_look_for_are_there(name: str, reference: dict[str, str]) -> None:
    assert f'heading: "anabranch.{name}"' in "\n".join(reference.values())


def test_methods_of_bases_that_are_not_public_are_listed(pages: ModuleType) -> None:
    """`fit` is written in a base of `Model` that has no entry; what `Layer` has is in its entry, not in `Dense`'s."""
    model, layer, dense = (pages.inherited(cls) for cls in (ab.Model, ab.layers.Layer, ab.layers.Dense))
    assert {"compile", "fit", "evaluate", "predict", "train_on_batch"} <= set(model)
    assert {"add_weight", "weights", "get_config"} <= set(layer)
    assert "enable_lora" in dense
    assert not {"add_weight", "get_config", "save"} & {*model, *dense}
    assert {"reshape", "sum"} <= set(pages.inherited(ab.Tensor))
    entry = pages.entry(next(name for name in pages.public_names("anabranch", ab) if name.value is ab.Model))
    assert re.search(r"\n      inherited_members: \[.*\bfit\b.*\]\n$", entry)


def test_signatures_are_those_of_inspect(pages: ModuleType) -> None:
    """mkdocstrings reads the sources; nothing that is public may have another signature at run time."""
    different, count = [], 0
    for path, module in pages.public_modules().items():
        for name in pages.public_names(path, module):
            if name.source is None or not inspect.isfunction(name.value):
                continue
            place, _, own = name.source.rpartition(".")
            there, count = parameters_in(place)[own], count + 1
            here = [(p.name, p.kind.description) for p in inspect.signature(name.value).parameters.values()]
            if there != here:
                different.append(f"{name.public}: {there} in the source, {here}")
    assert different == []
    assert count > 500


def test_names_have_docstrings_of_their_own(pages: ModuleType) -> None:
    """None is left to that of a base class, or of the object that a call returned."""
    names = [name for path, module in pages.public_modules().items() for name in pages.public_names(path, module)]
    bare = [name.public for name in names if callable(name.value) and not own_docstring(name.value)]
    assert bare == []
    assert len(names) > 1500


def own_docstring(value: object) -> str | None:
    """The docstring that is written for an object: of a class not that of its base."""
    return vars(value).get("__doc__") if isinstance(value, type) else value.__doc__


# Without an example are what needs Ray, and models that take seconds to make, whose family has one.
WITHOUT_EXAMPLE = 16


def test_names_have_an_example(pages: ModuleType) -> None:
    """In the docstring, or in .ci/site/examples.py, which has none for names that have one."""
    written = pages.EXAMPLES.examples()
    missing = set[int]()
    explained = {id(pages.EXAMPLES.value_of(name)) for name in written}
    for path, module in pages.public_modules().items():
        for name in pages.public_names(path, module):
            public, has_own = name.public.partition(".")[2], ">>> " in (inspect.getdoc(name.value) or "")
            assert not (has_own and public in written), public
            if callable(name.value) and not has_own:
                missing.add(id(name.value))
    assert len(missing - explained) <= WITHOUT_EXAMPLE, len(missing - explained)


# Those that users seldom call by themselves, or override with a body of their own.
METHODS_WITHOUT_EXAMPLE = 14


def test_methods_of_common_classes_have_an_example(pages: ModuleType) -> None:
    explained = {pages.EXAMPLES.value_of(name) for name in pages.EXAMPLES.examples()}
    classes = [ab.Model, ab.layers.Layer, ab.optim.Optimizer, ab.metrics.Metric, ab.Session, ab.GradientTape]
    missing: list[str] = []
    for cls in (*classes, ab.TensorArray, ab.Tensor, ab.Variable):
        for name in [*vars(cls), *pages.inherited(cls)]:
            member = inspect.getattr_static(cls, name)
            function = getattr(member, "__func__", member)
            has_own = ">>> " in (inspect.getdoc(function) or "")
            if not name.startswith("_") and inspect.isfunction(function) and not has_own:
                missing += [f"{cls.__name__}.{name}"] if not {function, getattr(cls, name)} & explained else []
    assert len(missing) <= METHODS_WITHOUT_EXAMPLE, missing
    assert not {"Model.fit", "Layer.call", "Optimizer.apply", "Session.run", "GradientTape.gradient"} & set(missing)


@pytest.mark.parametrize("share", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_examples_run(pages: ModuleType, share: int) -> None:
    """One of eight in `make test`, which makes all pages: it runs all of them and fails where one does."""
    examples = pages.EXAMPLES.examples()
    assert all(callable(pages.EXAMPLES.value_of(name)) for name in examples)
    for code in [*examples.values()][::share]:
        assert pages.EXAMPLES.run(code).startswith(">>> import anabranch as ab\n>>> ")
    session = pages.EXAMPLES.run(examples["ops.square"])
    assert session.splitlines()[1:] == [">>> ab.ops.square([-1.5, 0.75])", "Tensor([2.25  , 0.5625], dtype=float32)"]


def test_signatures_show_values_of_private_constants() -> None:
    parameters = [SimpleNamespace(default=default) for default in ("_MEAN", "_NO_SUCH_NAME", "0.5", None)]
    function = SimpleNamespace(parameters=parameters, module=SimpleNamespace(path="anabranch.framework.losses.api"))
    load("docstrings").Docstrings().on_function_instance(func=function)
    shown = [parameter.default for parameter in parameters]
    assert shown == ["'sum_over_batch_size'", "_NO_SUCH_NAME", "0.5", None]


def test_pages_name_the_version(pages: ModuleType) -> None:
    config = SimpleNamespace(site_name="anabranch", site_url=None, site_dir="site")
    assert pages.on_config(config).site_name == f"anabranch {ab.__version__}"
    assert config.site_dir == str(Path("site") / load("versions").folder_of(ab.__version__))
    served = SimpleNamespace(site_name="anabranch", site_url="http://localhost:8000/", site_dir="site")
    assert pages.on_config(served).site_dir == "site"


@cache
def parameters_in(module: str) -> dict[str, list[tuple[str, str]]]:
    """The parameters of the functions that a module defines, as its source has them: names and kinds."""
    source = Path(str(sys.modules[module].__file__)).read_text("utf-8")
    return {node.name: parameters_of(node.args) for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}


def parameters_of(written: ast.arguments) -> list[tuple[str, str]]:
    kinds = [("posonlyargs", "positional-only"), ("args", "positional or keyword"), ("vararg", "variadic positional")]
    kinds += [("kwonlyargs", "keyword-only"), ("kwarg", "variadic keyword")]
    found: list[tuple[str, str]] = []
    for field, kind in kinds:
        value = getattr(written, field)
        each = value if isinstance(value, list) else [value] if value is not None else []
        found += [(argument.arg, kind) for argument in each]
    return found


def test_a_module_without_a_list_gives_what_it_defines(pages: ModuleType) -> None:
    names = {name.public for name in pages.public_names("anabranch.constraints", ab.constraints)}
    assert "anabranch.constraints.MaxNorm" in names
    assert "anabranch.constraints.Any" not in names


def test_links_out_of_docs_lead_to_pages_of_sources(pages: ModuleType) -> None:
    assert pages._outside("ops.md", "../engine/graph/op.py") == "engine/graph/op.py"
    assert pages._outside("examples/dqn.md", "../queues.md") is None
    assert pages._outside("ops.md", "https://example.org/x.py") is None


@pytest.mark.parametrize(
    ("uri", "link", "led"),
    [
        ("index.md", "docs/tutorial.md#two-processes", "tutorial.md#two-processes"),
        ("index.md", ".github/SUPPORT.md", "source/github/SUPPORT.md"),
        ("source/CHANGELOG.md", "docs/values.md", "../values.md"),
        ("source/github/SUPPORT.md", "../CHANGELOG.md", "../../source/CHANGELOG.md"),
        ("examples/dqn.md", "../queues.md", "../queues.md"),
        ("examples/dqn.md", "../../examples/dqn.py#L10", "../source/examples/dqn.py.md"),
        ("source/examples/dqn.py.md", "docs/values.md", "docs/values.md"),
        ("ops.md", "https://example.org/x.py", "https://example.org/x.py"),
    ],
)
def test_links_lead_to_pages(pages: ModuleType, uri: str, link: str, led: str) -> None:
    assert pages.lead(f"See [this]({link}).", uri) == f"See [this]({led})."


def test_names_that_are_made_by_calls_are_linked_on_their_page(pages: ModuleType, reference: dict[str, str]) -> None:
    for path, module in pages.public_modules().items():
        page = reference[pages._index(path)]
        for name in pages.public_names(path, module):
            if name.source is None:
                assert f"](#{name.anchor}) |" in page
                assert f"{{ #{name.anchor} }}" in page


def test_warnings_fail_the_build_of_the_site(tmp_path: Path) -> None:
    """With --quiet MkDocs counts no warnings, so that --strict finds none."""
    recipes = re.findall(r"mkdocs build (.*?) --config-file", (SITE.parents[1] / "Makefile").read_text("utf-8"))
    assert recipes == ["--strict"] * 2, "of the site, and of what make test builds in its place"
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("[a page](no-page.md)\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: a site\ntheme: mkdocs\n")
    command = [sys.executable, "-m", "mkdocs", "build", recipes[0], "--config-file", "mkdocs.yml"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "no-page.md" in result.stderr


def test_what_make_test_builds_warns_of_all_that_the_site_warns_of() -> None:
    """It has the same pages, with the same text and the same links; a line of Markdown is read by the same rules."""
    config = pytest.importorskip("mkdocs.config")
    site, checked = (config.load_config(str(SITE / f"{name}.yml")) for name in ("mkdocs", "check"))
    for name in ("docs_dir", "nav", "validation", "markdown_extensions", "use_directory_urls", "exclude_docs"):
        assert site[name] == checked[name], name
    assert [Path(hook.__file__).name for hook in checked["hooks"].values()] == ["pages.py"]
    assert site["mdx_configs"] == {**checked["mdx_configs"], "pymdownx.highlight": {"anchor_linenums": True}}
    whole, plain = (each["plugins"]["mkdocstrings"].config["handlers"]["python"] for each in (site, checked))
    # No link of a signature is missed.
    signatures = ("show_signature", "show_signature_annotations", "signature_crossrefs")
    left_out = dict.fromkeys([*signatures, "show_symbol_type_heading", "show_symbol_type_toc"])
    assert {**plain, "options": plain["options"] | left_out} == {**whole, "options": whole["options"] | left_out}
    assert {*site["plugins"]} - {*checked["plugins"]} == {"material/search"}
    assert site["site_dir"] != checked["site_dir"]


def test_every_page_is_in_the_navigation() -> None:
    docs = SITE.parents[1] / "docs"
    listed = set(re.findall(r"[\w/-]+\.md", (SITE / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]))
    pages = sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md"))
    assert [page for page in pages if page not in listed] == []


@pytest.mark.parametrize(
    ("page", "title"), [("keras", "Keras"), ("pytorch", "PyTorch"), ("tensorflow1", "TensorFlow 1"), ("jax", "JAX")]
)
def test_ten_things_that_differ_stand_side_by_side(page: str, title: str) -> None:
    text = (SITE.parents[1] / "docs" / f"from-{page}.md").read_text("utf-8")
    parts = re.split(r"^#+ (\d+)\. ", text, flags=re.MULTILINE)
    assert parts[1::2] == [str(number) for number in range(1, 11)]
    for part in parts[2::2]:
        theirs, here = part.find(f'```python title="{title}'), part.find('```python title="anabranch"\n>>> ')
        assert 0 < theirs < here, part[:60]


def test_the_home_page_leaves_room_for_lines_of_code(pages: ModuleType) -> None:
    assert pages.home().startswith("---\nhide: [navigation]\n---\n\n# anabranch\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("anabranch.ops.while_loop", ["anabranch", "ops", "while_loop"]),
        ("layers.Dense(8, activation='relu')", ["layers", "Dense", "8", "activation", "'relu'", ""]),
        ("a rate of 0.5", ["a", "rate", "of", "0.5"]),
    ],
)
def test_search_finds_the_parts_of_names(text: str, words: list[str]) -> None:
    (separator,) = re.findall(r"^    separator: '(.*)'$", (SITE / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    assert re.split(separator, text) == words


def test_names_in_tables_are_not_broken() -> None:
    settings = (SITE / "mkdocs.yml").read_text("utf-8")
    (sheet,) = re.findall(r"^extra_css:\n  - (.*)$", settings, re.MULTILINE)
    assert "custom_dir: theme\n" in settings
    rules, of_phones = (SITE / "theme" / sheet).read_text("utf-8").split("@media screen and (max-width: ")
    assert "table:not([class]) code {\n  overflow-wrap: normal;" in rules
    assert "overflow-wrap: anywhere;" in of_phones  # summaries beside long names were cut off
    assert "thead:not(:has(th:not(:empty))) {\n  display: none;" in of_phones  # an empty row above tables without heads


def test_sections_stand_between_description_and_examples() -> None:
    found = load("docstrings").with_sections("Add.\n\nIn place.\n\n>>> 1 + 1\n2", "Returns:\n    The sum.")
    assert found == "Add.\n\nIn place.\n\nReturns:\n    The sum.\n\n>>> 1 + 1\n2"


def test_short_docstrings_of_ops_get_sections() -> None:
    function = SimpleNamespace(
        path="anabranch.engine.ops.math.trigonometry.sin", docstring=SimpleNamespace(value="The sine.")
    )
    load("docstrings").Docstrings().on_instance(obj=function)
    assert "Raises:\n    TypeError: strings are given." in function.docstring.value


def test_doctests_become_blocks() -> None:
    fenced = load("docstrings").fence_doctests("Add.\n\nExample:\n    >>> 1 + 1\n    2\n\nMore.\n>>> 3\n3")

    assert fenced == (
        "Add.\n\nExample:\n    ```pycon\n    >>> 1 + 1\n    2\n    ```\n\nMore.\n\n```pycon\n>>> 3\n3\n```"
    )


def test_entries_end_with_the_line_of_their_source(pages: ModuleType) -> None:
    griffe = pytest.importorskip("griffe")
    extensions = griffe.Extensions(load("docstrings").Docstrings())
    for name in ("layers.Dense", "ops.while_loop", "optim.Adam", "applications.ResNet50"):
        value = pages.EXAMPLES.value_of(name)
        file = Path(str(sys.modules[value.__module__].__file__))
        code = file.read_text("utf-8")
        lines = griffe.LinesCollection()
        lines[file] = code.splitlines()
        module = griffe.visit(value.__module__, file, code, extensions=extensions, lines_collection=lines)
        found = module[value.__name__]
        path, line = found.docstring.value.rpartition("\n\nSource: ")[2].split(", line ")
        written = (SITE.parents[1] / path.strip("`")).read_text("utf-8").splitlines()[int(line) - 1]
        assert re.match(rf"(def|class) {value.__name__}\b", written)


def test_the_source_is_a_link_where_the_repository_has_an_address() -> None:
    module = load("docstrings")
    file, lines = SITE.parents[1] / "layers" / "api.py", ["@decorated(", "    1", ")", "def f():"]
    assert module.source_line(file, 10, lines, None) == "Source: `layers/api.py`, line 13"
    linked = module.source_line(file, 10, lines, "https://example.org/anabranch")
    tree = "main" if ".dev" in ab.__version__ else f"v{ab.__version__}"
    assert linked == f"Source: [`layers/api.py`, line 13](https://example.org/anabranch/blob/{tree}/layers/api.py#L13)"
