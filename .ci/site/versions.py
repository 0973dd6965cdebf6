"""List the versions of the site that are beside each other, for the switch in the head of its pages.

Each version is a folder. Beside them are ``versions.json``, in the form of mike, which Material for MkDocs reads, and a
page that leads to the newest release, or to the development version where there is no release.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

DEVELOPMENT = "dev"
_FORWARD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>anabranch</title>
<meta http-equiv="refresh" content="0; url={0}/"></head>
<body><a href="{0}/">anabranch {0}</a></body></html>
"""


def folder_of(version: str) -> str:
    """Return the folder of a version: "0.2" of 0.2.1, "dev" of what is no release.

    >>> folder_of("0.2.1"), folder_of("0.3.0.dev0")
    ('0.2', 'dev')
    """
    found = re.fullmatch(r"(\d+\.\d+)(\.\d+)*", version)
    return found[1] if found else DEVELOPMENT


def write_versions(site: Path) -> list[str]:
    """Write the list of the versions in a folder, and its first page; return the versions, newest release first."""
    names = [page.parent.name for page in site.glob("*/index.html")]
    releases = sorted((name for name in names if name != DEVELOPMENT), key=_numbers, reverse=True)
    found = releases + [name for name in names if name == DEVELOPMENT]
    entries = [
        {"version": name, "title": name, "aliases": ["latest"] if name in releases[:1] else []} for name in found
    ]
    (site / "versions.json").write_text(json.dumps(entries, indent=1) + "\n", "utf-8")
    if found:
        (site / "index.html").write_text(_FORWARD.format(found[0]), "utf-8")
    return found


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]
