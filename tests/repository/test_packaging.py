"""The installed package is what the folders hold: nothing missing, nothing beside it."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from shared import type_checks

import anabranch as ab

ROOT = Path(__file__).parents[2]
FOLDERS = ["engine", "layers", "optim", "distribute", "framework"]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


@cache
def modules() -> set[str]:
    """Paths, as in a wheel, of every Python file of the package."""
    files = [path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return {"anabranch/__init__.py", "anabranch/__main__.py"} | {f"anabranch/{path.as_posix()}" for path in files}


def test_packages_are_the_folders_that_hold_an_init():
    listed: list[str] = PROJECT["tool"]["setuptools"]["packages"]
    found = {path.removesuffix("/__init__.py").replace("/", ".") for path in modules() if path.endswith("/__init__.py")}

    assert sorted(listed) == sorted(found), "mend [tool.setuptools] packages in pyproject.toml"


def test_every_folder_with_modules_is_a_package():
    folders = {path.rpartition("/")[0] for path in modules()}

    assert [folder for folder in sorted(folders) if f"{folder}/__init__.py" not in modules()] == []


def test_changelog_and_manifest_name_what_exists():
    assert re.search(r"^## (Unreleased|\[?\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    for line in (ROOT / "MANIFEST.in").read_text().splitlines():
        command, *names = line.split()
        missing = [name for name in names if command in ("include", "graft") and not (ROOT / name).exists()]
        assert missing == [], line


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist of a clean copy of the tree, and the wheel that is built from that sdist."""
    source, output = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    ignored = shutil.ignore_patterns("__pycache__", ".env*")
    for folder in [*FOLDERS, ".ci", "docs", "examples", "tests"]:
        shutil.copytree(ROOT / folder, source / folder, ignore=ignored)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, source)
    # With neither --sdist nor --wheel, the wheel is built from the sdist: it proves the sdist whole as well.
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(output), str(source)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return output


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    return next(distributions.glob("anabranch-*.whl"))


def test_readme_says_how_to_install_and_which_extras_there_are():
    lines = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("pip install ")]
    own = {"dev", "cuda-check"}  # for those who work on the package
    listed = " ".join(re.findall(r"\[[^]]*\]|also: .*", "\n".join(lines)))
    named = set(re.findall(r"[a-z-]+", listed)) - {"also"}
    assert "pip install ." in lines[0]
    assert named == set(PROJECT["project"]["optional-dependencies"]) - own


def test_wheel_holds_the_package_and_nothing_else(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}

    package = {name for name in names if ".dist-info/" not in name}
    public = {path for name in ab._MODULES for path in (f"{name.replace('.', '/')}.py", f"{name}/__init__.py")}  # pyright: ignore[reportPrivateUsage]
    for_editors = {name for name in package if name.removeprefix("anabranch/") in public}
    assert len(for_editors) == len(ab._MODULES)  # pyright: ignore[reportPrivateUsage]
    assert package == modules() | for_editors | {"anabranch/py.typed"}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_files_for_editors_name_modules_that_exist(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        for path in sorted(name for name in names - modules() if name.endswith(".py")):
            dots, module = re.findall(r"^from (\.+)([\w.]+) import \*$", archive.read(path).decode(), re.MULTILINE)[0]
            folder = "/".join(path.split("/")[: -len(dots)])
            file = f"{folder}/{module.replace('.', '/')}"
            assert {f"{file}.py", f"{file}/__init__.py"} & names, path


def test_sdist_holds_what_a_developer_needs(distributions: Path):
    archive = next(distributions.glob("anabranch-*.tar.gz"))
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}

    wanted = [".ci/run", "CHANGELOG.md", "LICENSE", "Makefile", "README.md", "docs/design.md", "pyproject.toml"]
    assert [name for name in wanted if name not in names] == []
    assert "tests/repository/test_packaging.py" in names
    assert [name for name in names if re.search(r"__pycache__|(^|/)\.(env|venv)", name)] == []


# Runs without site-packages, so that neither the editable install of this environment nor anything else that it
# happens to hold can help: there are the wheel, what it declares to need, and the standard library.
IN_AN_EMPTY_ENVIRONMENT = """
import importlib, sys
sys.path[:0] = sys.argv[1:]
import anabranch as ab
print(ab.__file__)
for name in ["layers", "optim", "engine", "framework", "distribute"]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        continue
    print("a bare", name)
x = ab.placeholder((), "float32", name="x")
_, y = ab.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * x), (0, 1.0))
with ab.Session() as session:
    print(float(session.run(ab.gradients(y, [x])[0], feed_dict={x: 2.0})))
"""


def declared_distributions() -> set[str]:
    """Names of the distributions that the package declares to need, and those that these need."""
    found: set[str] = set()
    waiting = [Requirement(text) for text in PROJECT["project"]["dependencies"]]
    while waiting:
        requirement = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        if requirement.name not in found:
            found.add(requirement.name)
            waiting += [Requirement(text) for text in metadata.requires(requirement.name) or []]
    return found


def link_distribution(name: str, folder: Path) -> None:
    """Make the top-level modules of an installed distribution importable from folder."""
    for top in {file.parts[0] for file in metadata.files(name) or [] if file.parts[0] not in ("..", "__pycache__")}:
        link = folder / top
        if not link.is_symlink():
            link.symlink_to(Path(str(metadata.distribution(name).locate_file(top))))


def test_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path):
    target, dependencies = tmp_path / "target", tmp_path / "dependencies"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-index"]
    pip += ["--no-compile"]  # of a thousand files a few are imported
    subprocess.run([*pip, "--target", str(target), str(wheel)], check=True, capture_output=True, text=True)
    dependencies.mkdir()
    for name in declared_distributions():
        link_distribution(name, dependencies)

    command = [sys.executable, "-I", "-S", "-c", IN_AN_EMPTY_ENVIRONMENT, str(target), str(dependencies)]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    assert result.stderr == ""
    assert result.stdout.splitlines() == [str(target / "anabranch" / "__init__.py"), "12.0"]
    assert (target / "anabranch" / "py.typed").exists()
    top_level = {path.name for path in target.iterdir()}
    assert top_level == {"anabranch", f"anabranch-{PROJECT['project']['version']}.dist-info", "bin"}
    assert [path.name for path in (target / "bin").iterdir()] == ["anabranch"]


@pytest.mark.slow
@pytest.mark.xdist_group("distributions")
@pytest.mark.parametrize("checker", ["pyright", "mypy"])
def test_type_checkers_know_the_installed_wheel(wheel: Path, tmp_path: Path, checker: str):
    environment, scripts = tmp_path / "environment", tmp_path / "scripts"
    scripts.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(environment / "bin" / "python")]
    command = [*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    for name in declared_distributions():
        link_distribution(name, type_checks.site_packages(environment))

    texts = {
        "mistakes.py": type_checks.mistakes_script(),
        "revealed.py": type_checks.types_script(),
        "right.py": (ROOT / "tests" / "framework" / "test_user_types.py").read_text(),
        "imports.py": type_checks.imports_script(),
    }
    found = getattr(type_checks, checker)(scripts, environment, texts)
    first = type_checks.IMPORTS.count("\n") + 1
    codes = [codes[("pyright", "mypy").index(checker)] for codes in type_checks.MISTAKES.values()]
    mistakes = {line: code for name, line, code, _ in found if name == "mistakes.py" and code in codes}
    assert mistakes == dict(enumerate(codes, first))
    types = [re.split('[."]', message.rstrip('"'))[-1] for name, _, _, message in found if name == "revealed.py"]
    assert types == [name.rpartition(".")[2] for name in type_checks.TYPES.values()]
    assert [each for each in found if each[0] == "right.py"] == []
    imports = [(code, message) for name, _, code, message in found if name == "imports.py"]
    shown = [re.split('[."]', message.rstrip('"'))[-1] for code, message in imports if not code]
    expected = type_checks.revealed_imports()
    assert len(shown) == len(expected)
    assert [name for name, wanted in zip(shown, expected, strict=True) if wanted] == [name for name in expected if name]
    unknown = {"pyright": "reportAttributeAccessIssue", "mypy": "attr-defined"}[checker]
    assert [code for code, _ in imports if code] == [unknown] * len(expected)
