"""Continuous integration and hooks run the make targets of a developer, by tools that are declared."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def declared(extra: str) -> set[str]:
    return {re.split(r"[^A-Za-z0-9_-]", each)[0] for each in PROJECT["project"]["optional-dependencies"][extra]}


@pytest.fixture(scope="module")
def jobs() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="MkDocs brings it")
    found: dict[str, Any] = {}
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        found |= yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    return found


def test_each_job_runs_one_make_target(jobs: dict[str, Any]):
    runs = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}
    called = {name: run.removeprefix("make ") for name, (run,) in runs.items()}

    assert set(called.values()) == {"test", "lowest", "dist-check", "test-all", "test-cuda", "test-portable"}
    assert set(called.values()) <= TARGETS
    assert all(run == f"make {called[name]}" for name, (run,) in runs.items())


def test_kernels_are_kept_by_each_job_that_compiles_some(jobs: dict[str, Any]):
    for name, job in jobs.items():
        kept = [step["with"] for step in job["steps"] if "actions/cache" in step.get("uses", "")]
        assert [each["path"] for each in kept] == ([] if name == "distributions" else [".kernels"])
        assert all("hashFiles('engine/codegen/**')" in each["key"] for each in kept)


@pytest.mark.parametrize(("system", "folder"), [("Windows_NT", "Scripts"), ("", "bin")])
def test_make_finds_the_commands_of_an_environment(system: str, folder: str):
    command = ["make", "--dry-run", "--always-make", f"OS={system}", "test-portable"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)

    assert f".venv/{folder}/python -m pytest" in done.stdout
    assert (".venv/bin" in done.stdout) == (folder == "bin")


def test_all_versions_of_python_that_are_declared_are_tested_with_kernels_kept(jobs: dict[str, Any]):
    names = [each.rpartition(" ")[2] for each in PROJECT["project"]["classifiers"] if ":: 3." in each]
    steps = jobs["test"]["steps"]

    assert jobs["test"]["strategy"]["matrix"]["python"] == names
    assert any("arm" in system for system in jobs["test"]["strategy"]["matrix"]["os"])
    assert any("actions/cache" in step.get("uses", "") and step["with"]["path"] == ".kernels" for step in steps)


def test_lowest_versions_are_those_that_are_declared():
    found = script("lowest").constraints(PROJECT["project"])
    required = [each for each in PROJECT["project"]["dependencies"] if ">=" in each]

    assert len(required) == len(PROJECT["project"]["dependencies"])  # each says from which version on
    assert {each.partition(",")[0].replace(">=", "==") for each in required} <= set(found)
    assert "orjson==3.10" in found


def test_the_lowest_versions_of_all_extras_are_installed():
    """But for those of tools; scikit-learn is that of models as its estimators."""
    (installed,) = re.findall(r"--editable '\.\[([a-z,]+)\]' pytest", (ROOT / "Makefile").read_text(encoding="utf-8"))
    extras = set(PROJECT["project"]["optional-dependencies"]) - script("lowest").TOOLS - {"examples"}

    assert set(installed.split(",")) == extras


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("Loops run in parallel\n\nThey waited for each other.\n", ""),
        ("", "empty"),
        ("A" * 73 + "\n\nwhy\n", "73 characters"),
        ("Loops run\nwhy\n", "not blank"),
        ("Loops run\n\n# a comment\n", "no body"),
        ("Loops run.\n\nwhy\n", "full stop"),
    ],
)
def test_messages_of_commits(message: str, fault: str):
    found = script("commit_message").faults(message)

    assert (fault in " ".join(found)) if fault else found == []


def test_hooks_run_tools_that_make_installs():
    yaml = pytest.importorskip("yaml", reason="MkDocs brings it")
    hooks = yaml.safe_load((ROOT / ".ci" / "pre-commit.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    entries = [hook["entry"].split() for hook in hooks]

    assert {Path(entry[0]).name for entry in entries} == {"ruff", "codespell", "lint-imports", "python"}
    assert {"ruff", "codespell", "import-linter", "twine", "check-wheel-contents"} <= declared("dev")
    assert all((ROOT / part).exists() for entry in entries for part in entry[1:] if part.endswith(".py"))


@pytest.mark.parametrize(
    ("package", "expected"),
    [("__init__.py", True), ("build/tried/lib/python3.11/site-packages/anabranch/__init__.py", False)],
)
def test_wheels_are_tried_in_an_environment_below_the_repository(package: str, expected: bool):
    """`make dist-check` makes one in build/."""
    assert script("try_wheel").is_repository(ROOT / package) == expected


def test_the_words_are_spelt_right():
    pytest.importorskip("codespell_lib", reason="codespell looks words up")
    done = subprocess.run(
        [sys.executable, "-m", "codespell_lib", "docs", "README.md", "CHANGELOG.md", ".github"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout == ""
    assert done.returncode == 0
