"""The changelog has each change once, below a kind of change and a subject, in lines that fit a terminal."""

import re
import tomllib
from collections import Counter
from itertools import pairwise
from pathlib import Path

import anabranch as ab

ROOT = Path(__file__).parents[2]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text("utf-8")
HEADING = re.compile(r"Unreleased \((\d+\.\d+\.\d+)\)|(\d+\.\d+\.\d+) \(\d{4}-\d\d-\d\d\)")
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]  # as in Keep a Changelog


def newest(text: str) -> str:
    """Return the part of the newest release."""
    return text.split("\n## ")[1]


def misplaced(release: str) -> list[str]:
    """Return the lines with which entries begin that have no kind of change, or no subject, above them."""
    kind, subject, found = "", "", []
    for line in release.splitlines():
        if line.startswith("### "):
            kind, subject = line[4:], ""
        elif line.startswith("**"):
            subject = line
        elif line.startswith("- ") and not (kind in KINDS and subject):
            found.append(line)
    return found


def repeated(release: str) -> list[str]:
    """Return the lines, and the headings of kinds, that are there twice: merges of branches leave such lines."""
    lines = Counter(line for line in release.splitlines() if line.startswith(("- ", "  ", "### ")))
    return [line for line, count in lines.items() if count > 1]


def version_by(changelog: str) -> str:
    """Return the version that the package has by its changelog: that of the release, or one on the way to it."""
    found = HEADING.fullmatch(newest(changelog).splitlines()[0])
    assert found, "the newest heading is neither 'Unreleased (0.2.0)' nor '0.2.0 (2026-12-31)'"
    return found[2] or f"{found[1]}.dev0"


def test_the_version_is_that_of_the_changelog() -> None:
    assert ab.__version__ == version_by(CHANGELOG)
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == ab.__version__
    assert version_by("# Changelog\n\n## Unreleased (0.3.0)\n\n## 0.2.0 (2026-12-01)\n") == "0.3.0.dev0"
    assert version_by("# Changelog\n\n## 0.2.0 (2026-12-01)\n") == "0.2.0"


def test_each_change_has_a_kind_and_a_subject() -> None:
    assert misplaced(newest(CHANGELOG)) == []


def test_each_change_is_there_once() -> None:
    assert repeated(newest(CHANGELOG)) == []


def test_no_line_is_cut_off() -> None:
    """An entry goes on in lines with two spaces; paragraphs of the summary have none."""
    lines = CHANGELOG.splitlines()
    after_nothing = [new for old, new in pairwise(lines) if new.startswith("  ") and not old.strip()]
    assert after_nothing == []
    assert [line for line in lines if len(line) > 132] == []


def test_what_merges_leave_is_found() -> None:
    release = "\n- An entry.\n### Added\n- Another.\n**Ops**\n- A third.\n  Its end.\n### Added\n**Ops**\n- A third.\n"
    assert misplaced(release) == ["- An entry.", "- Another."]
    assert repeated(release) == ["### Added", "- A third."]
    assert re.match(r"Unreleased|\[?\d", newest("# Changelog\n\n## Unreleased\n\n## 0.1.0\n"))
