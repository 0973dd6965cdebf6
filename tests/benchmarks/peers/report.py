"""python report.py results.jsonl limits.jsonl > tables.md: one line per (workload, peer, params).
The last run of each triple wins; `(xN)` compares with the fastest of the same workload and params."""

import json
import sys

rows = {}
for l in open(sys.argv[1]):
    r = json.loads(l)
    rows[r["workload"], r["peer"], json.dumps(r["params"])] = r
HIDE = {"budget", "reps", "runs"}
VARIANT = {"parallel", "inter"}  # params that name a peer's variant, not the work


def params(r, hide=HIDE):
    return " ".join(f"{k}={v}" for k, v in r["params"].items() if k not in hide)


def note(r):
    n = []
    if r["workload"] in ("W1", "W9"):
        p = r["params"]
        n.append("%.0f GFLOP/s" % (6 * p["B"] * p["T"] * 1024 * 2048 / r["median_ms"] / 1e6))
    if r["workload"] == "W9":
        n.append("+%.0f MB over start" % (r["peak_rss_mb"] - r["rss_before_step_mb"]))
    for k, f in (
        ("iters_per_s", "{:,} iter/s"),
        ("ops_per_s", "{:,} ops/s"),
        ("us_per_op", "{} us/op"),
        ("us_per_inner", "{} us per inner step"),
        ("import_s", "import {} s"),
        ("first_process_ms", "first process {} ms"),
    ):
        if k in r:
            n.append(f.format(r[k]))
    return ", ".join(n)


fmt = lambda v: "" if v is None else f"{v:,.0f}" if v >= 1000 else f"{v:.1f}" if v >= 10 else f"{v:.3g}"
last = None
key = lambda r: (int(r["workload"][1:]), params(r, HIDE | VARIANT), r.get("median_ms", 9e9))
for r in sorted(rows.values(), key=key):
    if r["workload"] != last:
        last = r["workload"]
        print(
            f"\n### {last}\n\n| params | peer | median ms | p10 | p90 | vs best | peak RSS MB | first step s "
            "| loss check | notes |"
        )
        print("|---|---|---|---|---|---|---|---|---|---|")
    name = r["peer"] + "".join(f" ({k}={r['params'][k]})" for k in VARIANT if k in r["params"])
    if "error" in r:
        print(f"| {params(r, HIDE | VARIANT)} | {name} | failed | | | | | | | {r['error']} |")
        continue
    best = min(q["median_ms"] for q in rows.values() if "median_ms" in q and key(q)[:2] == key(r)[:2])
    print(
        f"| {params(r, HIDE | VARIANT)} | {name} | {fmt(r['median_ms'])} | {fmt(r['p10'])} | {fmt(r['p90'])} | "
        f"x{r['median_ms'] / best:.2f} | {r['peak_rss_mb']} | {fmt(r['compile_or_first_step_s'])} | "
        f"{' '.join('%.6g' % c for c in r['loss_check'])} | {note(r)} |"
    )

print("\n### Limits\n")
lim = [json.loads(l) for l in open(sys.argv[2])]
cols = sorted({(l["lib"], l["threads"]) for l in lim})
print(
    "| what | unit | "
    + " | ".join(f"{a} {b} thr" if b else a for a, b in cols)
    + " |\n"
    + "|---" * (len(cols) + 2)
    + "|"
)
for w in dict.fromkeys(l["what"] for l in lim):
    at = {(l["lib"], l["threads"]): l for l in lim if l["what"] == w}
    print(
        f"| {w} | {next(iter(at.values()))['unit']} | "
        + " | ".join(f"{at[c]['median']} ({at[c]['best']})" if c in at else "" for c in cols)
        + " |"
    )
