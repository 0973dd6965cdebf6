"""Run peers' workloads, each in a fresh process, one JSON line each.

  PEERS_PY=<python with tensorflow, jax, keras, pytensor, numba>
  PEERS_PY_TORCH=<python with torch, keras>   (default: PEERS_PY)
  python run.py W1 torch_eager --set B=32 T=100
  python run.py W1 W2 --all [--out results.jsonl]     every peer and parameter set
  python run.py --list
PEERS_RT=1 runs each worker under `chrt -r 1` (root): on two cores even a low-priority neighbour
stalls the OpenMP peers by orders of magnitude otherwise.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MODULES = {
    f[:-3].split("_")[0].upper().replace("W0", "W"): f[:-3]
    for f in sorted(os.listdir(HERE))
    if f[0] == "w" and f[1:3].isdigit()
}


def load(w):
    sys.path.insert(0, HERE)
    return importlib.import_module(MODULES[w])


def params_for(mod, peer):
    ps = mod.PARAMS
    return ps[peer] if isinstance(ps, dict) and peer in ps else ps["*"] if isinstance(ps, dict) else ps


def env_for(peer, threads):
    env = dict(
        os.environ, TF_CPP_MIN_LOG_LEVEL="3", PYTHONWARNINGS="ignore", JAX_PLATFORMS="cpu", CUDA_VISIBLE_DEVICES=""
    )
    for v in ("OMP", "MKL", "OPENBLAS", "NUMBA"):
        env[v + "_NUM_THREADS"] = str(threads)
    if peer.startswith("keras_"):
        b = peer.split("_")[1]
        env["KERAS_BACKEND"] = {"tf": "tensorflow"}.get(b, b)
    return env


def python_for(peer):
    py = os.environ.get("PEERS_PY", sys.executable)
    return os.environ.get("PEERS_PY_TORCH", py) if "torch" in peer else py


def spawn(w, peer, params, threads=2, timeout=240):
    head = dict(workload=w, peer=peer, params=params)
    cmd = [python_for(peer), os.path.join(HERE, "run.py"), "--worker", w, peer, json.dumps(params)]
    if os.environ.get("PEERS_RT"):
        cmd = ["chrt", "-r", "1"] + cmd
    t = time.perf_counter()
    try:
        r = subprocess.run(cmd, env=env_for(peer, threads), capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return dict(head, error=f"timeout after {timeout} s")
    out = [l for l in r.stdout.splitlines() if l.startswith("@@")]
    if not out:
        lines = r.stderr.strip().splitlines() or ["rc %d" % r.returncode]
        return dict(head, error=([l for l in lines if "Error" in l[:60]] or lines)[-1][:300])
    return dict(head, **json.loads(out[-1][2:]), process_s=round(time.perf_counter() - t, 2))


def main():
    if sys.argv[1:2] == ["--worker"]:
        w, peer, params = sys.argv[2:5]
        print("@@" + json.dumps(load(w).PEERS[peer](json.loads(params))), flush=True)
        os._exit(0)
    a = argparse.ArgumentParser()
    a.add_argument("names", nargs="*")
    a.add_argument("--all", action="store_true")
    a.add_argument("--list", action="store_true")
    a.add_argument("--set", nargs="*", default=[])
    a.add_argument("--out")
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--timeout", type=float, default=240)
    a = a.parse_args()
    if a.list:
        for w in MODULES:
            print(w, MODULES[w], *load(w).PEERS)
        return
    ws = [n for n in a.names if n in MODULES]
    peers = [n for n in a.names if n not in MODULES]
    forced = {k: json.loads(v) for k, v in (s.split("=", 1) for s in a.set)}
    for w in ws:
        mod = load(w)
        for peer in peers or mod.PEERS:
            for p in [forced] if forced else params_for(mod, peer) if a.all else params_for(mod, peer)[:1]:
                line = json.dumps(spawn(w, peer, p, a.threads, a.timeout))
                print(line, flush=True)
                if a.out:
                    with open(a.out, "a") as f:
                        f.write(line + "\n")


if __name__ == "__main__":
    main()
