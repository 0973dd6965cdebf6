"""The key of a machine: facts by which LLVM chooses the host to compile for, found without loading LLVM."""

from __future__ import annotations

import os
from importlib.util import find_spec

_FACTS = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")
_MOST_BYTES = 1 << 14  # a processor takes some 2,000


def machine_key(processors: str = "/proc/cpuinfo") -> str:
    """Return a text that is another one for another processor or another LLVM; "" where that can't be found out.

    LLVM's own words for the host are kept under it (see `Library`), so that they are asked for once.

    Args:
        processors: the file with the system's description of each processor.
    """
    try:
        with open(processors, "rb") as file:
            first = file.read(_MOST_BYTES).partition(b"\n\n")[0].decode()
        library = _llvm_library()
        status = os.stat(library)
    except (OSError, ImportError, UnicodeDecodeError):
        return ""
    rows = [line.partition(":") for line in first.splitlines()]
    facts = {name.strip(): value.strip() for name, _, value in rows}
    if not facts.keys() >= set(_FACTS):
        return ""
    return repr(([facts[name] for name in _FACTS], library, status.st_size, status.st_mtime_ns))


def _llvm_library() -> str:
    """Return the file of llvmlite that holds LLVM.

    Raises:
        ImportError: there is no llvmlite.
    """
    found = find_spec("llvmlite")
    if found is None or not found.submodule_search_locations:
        raise ImportError("no llvmlite")
    return os.path.join(found.submodule_search_locations[0], "binding", "libllvmlite.so")
