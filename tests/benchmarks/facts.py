"""Facts about a run for the head of the report: versions and the class of the machine."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from harness import Interpreters, Settings

OUR_PACKAGES = ("anabranch", "numpy", "llvmlite")
PEER_PACKAGES = ("tensorflow-cpu", "jax", "keras", "pytensor", "numba", "numpy")
TORCH_PACKAGES = ("torch", "numpy")
ASK = """
import sys
from importlib import metadata
for name in sys.argv[1:]:
    try:
        print(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        pass
"""
VECTORS = (("avx512f", "AVX-512"), ("avx2", "AVX2"), ("asimd", "NEON"))


def machine_class() -> str:
    """Processors, instruction set and memory: what a ratio depends on, and nothing that names a machine."""
    parts = [f"{os.cpu_count()} processors", platform.machine()]
    try:
        flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split())
        parts += [name for flag, name in VECTORS if flag in flags][:1]
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        parts.append(f"{pages * size / 2**30:.0f} GiB")
    except (OSError, ValueError):
        parts.append(platform.system())
    return ", ".join(parts)


def _own_versions() -> str:
    found = []
    for name in OUR_PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join([f"Python {platform.python_version()}", *found])


def _versions_in(python: Path | None, packages: tuple[str, ...]) -> str:
    if python is None:
        return "not built"
    done = subprocess.run([str(python), "-c", ASK, *packages], capture_output=True, text=True, check=False)
    return ", ".join(done.stdout.strip().splitlines()) or "unknown"


def gather(interpreters: Interpreters, settings: Settings) -> dict[str, str]:
    """Facts for the head of the report, in order."""
    priority = "real-time priority (`chrt -r 1`)" if settings.realtime else "ordinary priority"
    return {
        "Date": datetime.date.today().isoformat(),
        "Machine": machine_class(),
        "Threads": f"{settings.threads} (affinity, OMP, OpenBLAS, MKL), {priority}",
        "Rounds": f"{settings.rounds}, rows taking turns, a fresh process each",
        "Ours": _own_versions(),
        "Peers": _versions_in(interpreters.peers, PEER_PACKAGES),
        "PyTorch": _versions_in(interpreters.torch, TORCH_PACKAGES),
    }
