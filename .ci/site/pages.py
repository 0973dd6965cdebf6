"""Make the pages of the site that are no files of docs/: home page, reference, and source files that pages link to.

MkDocs calls the functions `on_...` of this file (see "hooks" in mkdocs.yml).
"""

from __future__ import annotations

import gc
import importlib.util
import inspect
import linecache
import posixpath
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path, PurePosixPath
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import anabranch

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<=\]\()([^)\s#]+)((?:#[^)\s]*)?)(?=\))")
# Modules of many names: a page for each source file, and a page that lists all.
LARGE = ("ops", "layers")
# Modules that stand for others' names; their names are explained where they are defined.
SKIPPED = frozenset(["optimizers", "tf", "datasets", "engine", "framework"])
_MEMBERS = (FunctionType, classmethod, staticmethod, property)
# The modules of TensorFlow's names come last: names that they share with others are explained there.
TENSORFLOW = (
    *("tf", "tf.config", "tf.data", "tf.debugging", "tf.image", "tf.io", "tf.linalg", "tf.math", "tf.nn"),
    *("tf.random", "tf.strings"),
)


def _load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"site_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


EXAMPLES = _load("examples")
VERSIONS = _load("versions")


@dataclass(frozen=True)
class Name:
    """One public name: where users find it, and its definition in the sources (None if it is made by a call)."""

    public: str
    value: Any
    source: str | None
    module: str

    @property
    def anchor(self) -> str:
        """Return the identifier that links use."""
        return self.source or self.public

    @property
    def summary(self) -> str:
        """Return the first paragraph of the docstring, as a cell of a table."""
        text = (inspect.getdoc(self.value) or "").split("\n\n", 1)[0].replace("\n", " ")
        return re.sub(r"(`+).*?\1|\|", lambda found: found[0] if found[1] else "\\|", text)


def link_sources() -> Path:
    """Return a folder that holds links to the package alone: tests and environments beside it would be read as well."""
    folder = ROOT / "build" / "sources" / "anabranch"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("__init__.py", *anabranch._PACKAGES):
        if not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)
    return folder.parent


def public_modules() -> dict[str, ModuleType]:
    """Return the modules whose names are public, by the name that users write, the root first."""
    names = [*anabranch._MODULES, *anabranch._PACKAGES]
    chosen = sorted(name for name in names if "." not in name and name not in SKIPPED)
    modules = {f"anabranch.{name}": _module(name) for name in ("layers", "ops", *chosen)}
    return {**modules, "anabranch": anabranch, **{f"anabranch.{name}": _module(name) for name in TENSORFLOW}}


def _module(name: str) -> ModuleType:
    value = attrgetter(name)(anabranch)
    getattr(value, "__all__", None)  # a module that is loaded on demand is there after this
    return value


def public_names(path: str, module: ModuleType) -> Iterator[Name]:
    """Yield the public functions, classes and objects of `module`, which users write as `path`, by name."""
    listed = list(anabranch._EXPORTS) if module is anabranch else getattr(module, "__all__", None)
    for name in sorted(listed if listed is not None else vars(module)):
        value = getattr(module, name, None)
        if name.startswith("_") or isinstance(value, (ModuleType, SimpleNamespace, int, str)) or value is None:
            continue
        if listed is None and getattr(value, "__module__", None) != module.__name__:
            continue
        yield Name(f"{path}.{name}", value, _source(value), str(getattr(value, "__module__", "")))


def _source(value: Any) -> str | None:
    if not (inspect.isclass(value) or inspect.isfunction(value)) or "<" in value.__qualname__:
        return None
    found = f"{value.__module__}.{value.__qualname__}"
    return found if value.__module__.startswith("anabranch") and _is_written(value) else None


def _is_written(value: Any) -> bool:
    """Say whether `value` is written as a def or class under its own name: what is made by calls has no such place."""
    written = inspect.unwrap(value)
    if inspect.isfunction(written):
        first = written.__code__.co_firstlineno - 1  # of its decorators
        lines = linecache.getlines(written.__code__.co_filename)[first : first + 12]
    else:
        lines = linecache.getlines(str(sys.modules[value.__module__].__file__))
    return any(re.match(rf"(async )?(def|class) {value.__name__}\b", line) for line in lines)


def inherited(value: Any) -> list[str]:
    """Return the members that a class has from bases without an entry, but for those that a base with one has, too."""
    if not inspect.isclass(value):
        return []
    public = (_public_classes() & set(value.__mro__)) - {value}
    private = [base for base in value.__mro__[1:] if base not in public and base.__module__.startswith("anabranch")]
    shown = {*vars(value), *(name for base in public for name in dir(base))}
    members = [
        (name, member) for base in private for name, member in vars(base).items() if isinstance(member, _MEMBERS)
    ]
    return list(dict.fromkeys(name for name, each in members if name not in shown and _is_documented(name, each)))


def _is_documented(name: str, member: object) -> bool:
    return not name.startswith("_") and bool(inspect.getdoc(member))


@cache
def _public_classes() -> set[type]:
    modules = public_modules().items()
    return {
        name.value for path, module in modules for name in public_names(path, module) if inspect.isclass(name.value)
    }


def entry(name: Name) -> str:
    """Return the Markdown of one public name: mkdocstrings' block, or signature and docstring."""
    if name.source is not None:
        block = f'::: {name.source}\n    options:\n      heading: "{name.public}"\n      toc_label: "{_last(name)}"\n'
        members = inherited(name.value)
        return block + (f"      inherited_members: [{', '.join(members)}]\n" if members else "")
    text = inspect.getdoc(name.value) or ""
    code = EXAMPLES.examples().get(name.public.partition(".")[2])
    if code is not None and ">>> " not in text:
        text += f"\n\n{EXAMPLES.run(code)}\n"
    text = re.sub(r"((?:^ *>>> .*\n?(?:^(?! *$).*\n?)*)+)", r"\n```pycon\n\1\n```\n", text, flags=re.MULTILINE)
    return (
        f"## `{name.public}` {{ #{name.public} }}\n\n```python\n{_last(name)}{signature(name.value)}\n```\n\n{text}\n"
    )


def signature(value: Any) -> str:
    """Return the signature of `value` as `inspect` has it, or nothing if it has none."""
    try:
        return str(inspect.signature(value))
    except (TypeError, ValueError):
        return ""


def _last(name: Name) -> str:
    return name.public.rsplit(".", 1)[1]


def reference() -> dict[str, str]:
    """Return the pages of the reference: their paths below docs/, and their Markdown."""
    pages: dict[str, str] = {}
    anchors: set[str] = set()  # of what has an entry already
    for path, module in public_modules().items():
        names = list(public_names(path, module))
        groups: dict[str, list[Name]] = {}
        for name in names:
            if name.anchor not in anchors:
                anchors.add(name.anchor)
                groups.setdefault(_page(path, name), []).append(name)
        for page, group in groups.items():
            if page != _index(path):
                title = group[0].module.rsplit(".", 1)[-1].replace("_", " ").capitalize()
                index = posixpath.relpath(_index(path), posixpath.dirname(page))  # these pages are in no navigation
                pages[page] = f"# {title}\n\nPart of [`{path}`]({index}).\n\n" + "\n".join(map(entry, group))
        own = "\n".join(entry(name) for name in groups.get(_index(path), []))
        pages[_index(path)] = f"# `{path}`\n\n{_heading(module)}\n\n{_table(names)}\n\n{own}"
    pages["reference/index.md"] = _contents() + pages["reference/index.md"].split("\n", 1)[1]
    return pages


def _index(path: str) -> str:
    return "reference/index.md" if path == "anabranch" else f"reference/{path.split('.', 1)[1]}/index.md"


def _page(path: str, name: Name) -> str:
    if path.split(".", 1)[-1] not in LARGE or name.source is None:
        return _index(path)
    return str(PurePosixPath(_index(path)).with_name(name.module.rsplit(".", 1)[-1] + ".md"))


def _heading(module: ModuleType) -> str:
    return (inspect.getdoc(module) or "").split("\n\n>>>")[0]


def _table(names: list[Name]) -> str:
    # What is made by a call has its entry below the table: mkdocstrings does not know it, so it can't find the page.
    links = [f"[{name.anchor}]" if name.source is not None else f"(#{name.anchor})" for name in names]
    rows = [f"| [`{_last(name)}`]{link} | {name.summary} |" for name, link in zip(names, links, strict=True)]
    return "\n".join(["| Name | |", "|---|---|", *rows])


def _contents() -> str:
    modules = [path for path in public_modules() if path != "anabranch"]
    rows = [f"| [`{path}`]({_index(path)[len('reference/') :]}) | {_first(path)} |" for path in sorted(modules)]
    return "\n".join(["# Reference", "", "Every public name, by module.", "", "| Module | |", "|---|---|", *rows, ""])


def _first(path: str) -> str:
    return _heading(public_modules()[path]).split("\n\n")[0].replace("\n", " ")


def linked_sources(files: Files) -> set[str]:
    """Return the files outside of docs/ that pages link to, relative to the root of the repository."""
    pages = [(file.src_uri, file.content_string) for file in files.documentation_pages()]
    links = [(uri, link) for uri, text in pages for link, _ in LINK.findall(text)]
    found = {_outside(uri, link) for uri, link in links}
    return {path for path in found if path is not None and (ROOT / path).is_file()}


def _outside(uri: str, link: str) -> str | None:
    """Return the path from the root of what `link` in the page `uri` names, None where that is a page or an address."""
    target = _target(uri, link)
    return None if target is None or target.startswith("docs/") else target


def _target(uri: str, link: str) -> str | None:
    """Return the path from the root of the repository that `link` in the page `uri` names, None for an address."""
    if "://" in link or link.startswith(("/", "mailto:")):
        return None
    target = (ROOT / _origin(uri)).parent.joinpath(link).resolve()
    return target.relative_to(ROOT).as_posix() if target.is_relative_to(ROOT) else None


def _origin(uri: str) -> str:
    """Return the path from the root of the file that the page `uri` shows: its links are relative to that."""
    if uri == "index.md":
        return "README.md"
    name = uri.removeprefix("source/")
    if name == uri:
        return f"docs/{uri}"
    return next((path for path in (name, f".{name}", name.removesuffix(".md")) if (ROOT / path).is_file()), name)


def _page_of(path: str) -> str:
    """Return the page that shows the file `path`. MkDocs leaves out folders whose names begin with a dot."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"source/{path.removesuffix('.md').removeprefix('.')}.md"


def lead(markdown: str, uri: str) -> str:
    """Return the Markdown of the page `uri` with links to files of the repository as links to their pages."""
    origin, up = _origin(uri), "../" * (len(PurePosixPath(uri).parts) - 1)
    if not origin.endswith(".md"):
        return markdown  # a source file: its brackets are no links

    def led(match: re.Match[str]) -> str:
        path = _target(uri, match[1])
        if path is None or not (ROOT / path).is_file() or (path.startswith("docs/") and origin.startswith("docs/")):
            return match[0]
        return up + _page_of(path) + (match[2] if path.endswith(".md") else "")

    return LINK.sub(led, markdown)


def home() -> str:
    """Return the README as the home page, without the links to folders, which have no page.

    It is alone in its section: what would be the list of its pages is room for lines of code.
    """
    text = (ROOT / "README.md").read_text("utf-8")
    return "---\nhide: [navigation]\n---\n\n" + re.sub(
        r"\[([^\]]*)\]\((?:framework|distribute|layers|optim|engine|examples|tests|docs)\)", r"\1", text
    )


def on_startup(command: str, dirty: bool) -> None:
    """Lay out the sources before mkdocstrings is configured: it ignores a path that does not exist by then."""
    gc.set_threshold(50_000, 20, 1000)  # the millions of objects that stand for the sources stay until the end
    link_sources()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name the version that the pages describe in the head of each; each version that is built has a folder."""
    config.site_name = f"{config.site_name} {anabranch.__version__}"
    if not config.site_url:  # `mkdocs serve` sets it, and shows this version alone
        config.site_dir = str(Path(config.site_dir) / VERSIONS.folder_of(anabranch.__version__))
    return config


def on_post_build(config: MkDocsConfig) -> None:
    """List the versions that have been built."""
    if not config.site_url:
        VERSIONS.write_versions(Path(config.site_dir).parent)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here."""
    made = {"index.md": home(), **reference()}
    for uri, text in made.items():
        files.append(File.generated(config, uri, content=text))
    for path in sorted(linked_sources(files)):
        text = (ROOT / path).read_text("utf-8")
        if not path.endswith(".md"):
            text = f"# {path}\n\n```{'python' if path.endswith('.py') else 'text'}\n{text}\n```\n"
        files.append(File.generated(config, _page_of(path), content=text))
    config.nav = [_with_reference(item) for item in config.nav or []]
    return files


def _with_reference(item: Any) -> Any:
    if not isinstance(item, dict) or "Reference" not in item:
        return item
    modules = sorted(path for path in public_modules() if path != "anabranch")
    return {"Reference": ["reference/index.md", *({path: _index(path)} for path in modules)]}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to files outside of docs/ to their pages."""
    return lead(markdown, page.file.src_uri)
