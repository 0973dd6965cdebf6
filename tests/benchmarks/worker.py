"""Run one measurement in this process and print its record as one line, `@@` and JSON.

    python worker.py peers w02_custom_cell jax_scan '{"B": 32, "T": 100}'
    python worker.py ours  w02             anabranch '{"B": 32, "T": 100}'

It imports nothing but the standard library before the workload, and leaves by `os._exit`: frameworks' exit handlers are
not measured and sometimes hang.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main(side: str, module: str, name: str, params: str) -> None:
    sys.path[:0] = [str(HERE / "workloads"), str(HERE / "peers"), str(HERE.parent)]
    loaded = importlib.import_module(module)
    functions = loaded.OURS if side == "ours" else loaded.PEERS
    print("@@" + json.dumps(functions[name](json.loads(params))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)
