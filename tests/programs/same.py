"""Compare the programs of this checkout with those of another commit, byte by byte.

    .venv/bin/python tests/programs/same.py REF             # all programs of `chosen.py`
    .venv/bin/python tests/programs/same.py REF --only lstm # those with "lstm" in their names
    .venv/bin/python tests/programs/same.py REF --list

Compared are, of each program, the prepared step (`describe_step.py`), the printed source, and the LLVM modules with
their object code; they do not vary between processes. A refactoring leaves all of them equal. For any other commit the
list of what differs, and a few lines of how, go into its message. Exit status: 0 all equal, 1 something differs.

Modules are compiled once for each text and kept in .venv/.same, as is the record of REF: the second comparison with the
same commit takes half the time.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
KEPT = CHECKOUT / ".venv" / ".same"
PARTS = ("step", "source", "modules", "code", "error")
_MOST_LINES = 6  # that are shown of a difference

Record = dict[str, dict[str, Any]]  # by the name of a program and the part


# --- recording, in a process that has one checkout on its path -----------------------------------------------------


def record(only: str, kept: Path) -> Record:
    """Make the chosen programs and write down what they are made of."""
    import programs.chosen as chosen
    from programs.chosen import CHOSEN
    from programs.describe_step import described, digest

    from anabranch.engine.codegen.llvm.compiler import Compiler
    from anabranch.engine.codegen.llvm.library import library
    from anabranch.engine.runtime import program as running

    steps: list[str] = []
    modules: dict[str, str] = {}
    sources: list[str] = []
    prepare, emit, print_step = running.prepare, Compiler.emit, running.Printer.print_step

    def prepared(*arguments: Any, **options: Any) -> Any:
        step = prepare(*arguments, **options)
        steps.append(described(step))
        return step

    def printed(printer: Any, *arguments: Any) -> str:
        source = print_step(printer, *arguments)
        sources.append(source)
        return source

    def emitted(compiler: Any, text: str, effort: Any) -> bytes:
        name = digest(f"{compiler.host} {effort.name} {text}")
        path = kept / f"{name}.o"
        if not path.exists():
            part = path.with_suffix(f".{os.getpid()}")
            part.write_bytes(emit(compiler, text, effort))
            part.replace(path)
        code = path.read_bytes()
        modules[digest(text)] = hashlib.sha256(code).hexdigest()
        return code

    found: Record = {}
    patches = [
        patch.object(running, "prepare", prepared),
        patch.object(chosen, "prepare", prepared),
        patch.object(running.Printer, "print_step", printed),
        patch.object(Compiler, "emit", emitted),
    ]
    for each in patches:
        each.start()  # for the rest of the process, which has no other task
    for name, make in CHOSEN.items():
        if only not in name:
            continue
        for texts in (steps, modules, sources):
            texts.clear()
        error = ""
        try:
            make()
        except Exception as failure:  # an older commit may lack what a program uses: that is a difference, too
            error = f"{type(failure).__name__}: {failure}"
        for future in list(getattr(library, "_coming", {}).values()):
            future.result()
        found[name] = {
            "step": "".join(steps),
            "source": "".join(sources),
            "modules": sorted(modules),
            "code": sorted(modules.values()),
            "error": error,
        }
    return found


# --- comparing ------------------------------------------------------------------------------------------------------


def differences(one: Record, other: Record) -> Iterator[tuple[str, str, list[str]]]:
    """For each program and part that differs its name, the part, and a few lines that show how."""
    from programs.describe_step import differing

    for name in dict.fromkeys([*one, *other]):
        if name not in one or name not in other:
            yield name, "program", [f"is only in {'this checkout' if name in one else 'the other commit'}"]
            continue
        for part in PARTS:
            mine, theirs = one[name][part], other[name][part]
            if mine == theirs:
                continue
            if isinstance(mine, list):
                gone, new = (len(set(a) - set(b)) for a, b in ((theirs, mine), (mine, theirs)))
                yield name, part, [f"{gone} of {len(theirs)} are gone, {new} are new"]
                continue
            pairs = list(differing(theirs, mine))
            shown = [line for was, now in pairs[:_MOST_LINES] for line in (f"- {was}", f"+ {now}")]
            yield name, part, [f"{len(pairs)} lines", *shown]


def _recorded(package_parent: Path, only: str, out: Path) -> Record:
    """Return the record that another process makes with the `anabranch` package below `package_parent`."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(package_parent),
        "PYTHONHASHSEED": "0",
        "PEERS_BUDGET": "0.01",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    with tempfile.TemporaryDirectory() as cache:
        environment["ANABRANCH_CACHE_DIR"] = cache  # empty, so that everything is printed
        command = [sys.executable, __file__, "--record", str(out), "--only", only]
        subprocess.run(command, env=environment, check=True, cwd=cache)
    return json.loads(gzip.decompress(out.read_bytes()))


def _of_commit(ref: str, only: str) -> Record:
    commit = _git("rev-parse", f"{ref}^{{commit}}").strip()
    scripts = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(HERE.glob("*.py")))).hexdigest()[:8]
    out = KEPT / f"{commit[:12]}-{scripts}-{hashlib.sha256(only.encode()).hexdigest()[:8]}.json.gz"
    if out.exists():
        return json.loads(gzip.decompress(out.read_bytes()))
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "anabranch"
        package.mkdir()
        archive = subprocess.run(["git", "archive", commit], cwd=CHECKOUT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", str(package)], input=archive, check=True)
        part = Path(folder) / "record"
        found = _recorded(Path(folder), only, part)
        part.replace(out) if part.stat().st_dev == KEPT.stat().st_dev else out.write_bytes(part.read_bytes())
    return found


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=CHECKOUT, check=True, capture_output=True, text=True).stdout


def main() -> int:
    """Compare, and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ref", nargs="?", default="main", help="the commit to compare with")
    parser.add_argument("--only", default="", help="compare programs with this in their names")
    parser.add_argument("--list", action="store_true", help="list the programs")
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    KEPT.mkdir(parents=True, exist_ok=True)
    if given.list:
        from programs.chosen import CHOSEN

        print("\n".join(CHOSEN))
        return 0
    if given.record:
        given.record.write_bytes(gzip.compress(json.dumps(record(given.only, KEPT)).encode(), mtime=0))
        return 0
    theirs = _of_commit(given.ref, given.only)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "anabranch").symlink_to(CHECKOUT)
        mine = _recorded(Path(folder), given.only, Path(folder) / "record")
    found = list(differences(mine, theirs))
    for name, part, lines in found:
        print(f"{name}: {part} differs: {lines[0]}", *lines[1:], sep="\n    ")
    failed = [name for name, parts in mine.items() if parts["error"]]
    for name in failed:
        print(f"{name}: could not be made: {mine[name]['error']}")
    programs = {name for name, _, _ in found}
    print(f"{len(mine) - len(programs)} of {len(mine)} programs are equal to those of {given.ref}.")
    return 1 if found or failed else 0


if __name__ == "__main__":
    sys.path[0] = str(HERE.parent)
    sys.exit(main())
