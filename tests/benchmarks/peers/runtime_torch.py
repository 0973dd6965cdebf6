"""Distributed checkpoints of PyTorch: two processes of a gloo group write half of the bytes each, with fsync.

  python runtime_torch.py '{"save": 400000000, "folder": "/tmp/somewhere"}'

Reads lines "save TIMES" and answers each with a line "@@ [seconds of each save]".
"""

import json
import os
import shutil
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

SIZE = 2


def save(given, rank, number):
    """Save once; the seconds until all ranks have written."""
    state = {f"w{rank}": given}
    path = os.path.join(FOLDER, f"torch-{number}")
    dist.barrier()
    began = time.perf_counter()
    dcp.save(state, storage_writer=dcp.FileSystemWriter(path, sync_files=True))
    seconds = time.perf_counter() - began
    dist.barrier()
    if rank == 0:
        shutil.rmtree(path)
    return seconds


def main(rank):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{FOLDER}/group", rank=rank, world_size=SIZE)
    given = torch.ones(SETTINGS["save"] // 4 // SIZE)
    save(given, rank, 0)
    if rank == 0:
        print("@@ ready", flush=True)
    number = 0
    while True:
        line = [sys.stdin.readline() if rank == 0 else None]
        dist.broadcast_object_list(line)
        if not line[0]:
            return
        taken = []
        for _ in range(int(line[0].split()[-1])):
            number += 1
            taken.append(save(given, rank, number))
        if rank == 0:
            print("@@", json.dumps(taken), flush=True)


SETTINGS = json.loads(sys.argv[1])
FOLDER = SETTINGS["folder"]
if __name__ == "__main__":
    if len(sys.argv) > 2:
        main(1)
        os._exit(0)
    other = subprocess.Popen([sys.executable, __file__, sys.argv[1], "second"], stdin=subprocess.DEVNULL)
    try:
        main(0)
        other.wait()
    finally:
        other.kill()
    os._exit(0)
