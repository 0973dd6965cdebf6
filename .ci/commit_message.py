"""Checks the message of a commit: a subject of at most 72 characters, a blank line, and a body that says why.

python .ci/commit_message.py FILE
"""

from __future__ import annotations

import sys
from pathlib import Path

LONGEST = 72


def faults(message: str) -> list[str]:
    """Return what is wrong with a message; an empty list if nothing is."""
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    subject = lines[0] if lines else ""
    found: list[str] = []
    if not subject.strip():
        found.append("The subject is empty: say in a line what changed.")
    if len(subject) > LONGEST:
        found.append(f"The subject has {len(subject)} characters; at most {LONGEST} are shown everywhere: {subject!r}.")
    if subject.endswith("."):
        found.append("The subject ends with a full stop; it is a title.")
    if len(lines) > 1 and lines[1].strip():
        found.append("The second line is not blank: tools would take it for a part of the subject.")
    if not any(line.strip() for line in lines[2:]):
        found.append("There is no body: say why, for a reader half a year from now.")
    return found


if __name__ == "__main__":
    problems = faults(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print("\n".join(problems), file=sys.stderr)
    sys.exit(bool(problems))
