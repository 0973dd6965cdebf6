"""Words a second of a language model with a full and with a sampled softmax (see workloads/softmax.py).

    python tests/benchmarks/softmax_table.py            prints a table
    python tests/benchmarks/softmax_table.py --write    also draws docs/figures/softmax.svg

Each figure comes from a fresh process. `run.py softmax` measures the same and holds it against goals.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import harness
from figures import chart
from table import markdown

FIGURE = harness.HERE.parent.parent / "docs" / "figures" / "softmax.svg"
KINDS = ("full", "sampled")
WORDS = 512  # a step


def words_a_second(kind: str, params: dict[str, Any]) -> float:
    """Return the words a second of one process."""
    worker = [sys.executable, str(harness.HERE / "worker.py"), "ours", "softmax", kind, json.dumps(params)]
    done = subprocess.run(worker, capture_output=True, text=True, check=False)
    records = [text for text in done.stdout.splitlines() if text.startswith("@@")]
    if not records:
        raise SystemExit(f"{kind} {params} failed:\n{done.stderr[-3000:]}")
    return 1e3 * WORDS / json.loads(records[-1][2:])["median_ms"]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="draw the figure, too")
    options = parser.parse_args(arguments)
    harness.pin_to_processors(2)
    rows: list[list[str]] = []
    series: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    for where, shards in [("this machine", 1), *[("simulated", count) for count in (1, 2, 4, 8, 16, 32)]]:
        params = {"shards": shards, "devices": where == "simulated"}
        rates = {kind: words_a_second(kind, params) for kind in KINDS}
        if where == "simulated":
            for kind, rate in rates.items():
                series[kind].append((shards, rate))
        shown = [f"{rate:,.0f}" for rate in rates.values()]
        rows.append([where, str(shards), *shown, f"{rates['sampled'] / rates['full']:.1f}"])
        print(rows[-1], file=sys.stderr, flush=True)
    print(markdown(["where", "shards", "full, words/s", "sampled, words/s", "ratio"], rows))
    if options.write:
        figure = chart("LSTM-512, 40,000 words, simulated devices", "shards", "words a second", series, log_x=True)
        FIGURE.write_text(figure, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
