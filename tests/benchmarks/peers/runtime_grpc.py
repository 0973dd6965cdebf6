"""Two ps processes from and to which a worker moves variables by grpcio alone: the limit of the gRPC plane.

  python runtime_grpc.py '{"dense": 6250000}'

Reads lines "CASE TIMES" and answers each with a line "@@ [seconds of each step]". In case "dense" each step reads an
array of each ps process, adds one, and writes it, as `runtime_tensorflow.py` does. In case "bytes" the same number of
bytes moves, and neither side has arrays: what is received is dropped. There is one stream for each ps process, with
messages of nearly 4 MiB, which is the most that gRPC takes by default, and no serializers. The ps processes end with
this one.
"""

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import grpc
import numpy as np

PIECE = (4 << 20) - (64 << 10)  # bytes
METHOD = ("anabranch.Benchmark", "Stream")
bytes(31 << 20)  # from now on C's allocator keeps the memory of pieces, as it does behind values of this size


def sent(array):
    """Yield the bytes of an array in pieces."""
    memory = memoryview(array.view(np.uint8))
    for begin in range(0, len(memory), PIECE):
        yield bytes(memory[begin : begin + PIECE])


def received(pieces, array):
    """Fill an array."""
    memory, filled = memoryview(array.view(np.uint8)), 0
    while filled < len(memory):
        piece = next(pieces)
        memory[filled : filled + len(piece)] = piece
        filled += len(piece)


def made(count):
    """Yield so many bytes in pieces that are there already."""
    piece = bytes(PIECE)
    for begin in range(0, count, PIECE):
        yield piece if begin + PIECE <= count else piece[: count - begin]


def dropped(pieces, count):
    """Receive so many bytes."""
    while count:
        count -= len(next(pieces))


def serve(size):
    """Be a ps process: on b"dense" or b"bytes" send all, and receive as much."""
    array, taken = np.zeros(size, "float32"), np.zeros(size, "float32")

    def steps(requests, context):
        for case in requests:
            if case == b"dense":
                yield from sent(array)
                received(requests, taken)
            else:
                yield from made(4 * size)
                dropped(requests, 4 * size)
            yield b""

    handler = grpc.method_handlers_generic_handler(
        METHOD[0], {METHOD[1]: grpc.stream_stream_rpc_method_handler(steps, None, None)}
    )
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((handler,))
    print(server.add_insecure_port("localhost:0"), flush=True)
    server.start()
    sys.stdin.read()  # until the worker has gone
    os._exit(0)


class Other:
    """A ps process, with a stream to it and a thread that moves what belongs to it."""

    def __init__(self, size):
        command = [sys.executable, __file__, "--ps", str(size)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.array, self.result = np.zeros(size, "float32"), np.zeros(size, "float32")
        self.requests, self.asked, self.done = SimpleQueue(), SimpleQueue(), SimpleQueue()
        channel = grpc.insecure_channel(f"localhost:{int(self.process.stdout.readline())}")
        self.answers = channel.stream_stream("/" + "/".join(METHOD))(iter(self.requests.get, None))
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            case = self.asked.get()
            self.requests.put(case.encode())
            if case == "dense":
                received(self.answers, self.array)
                np.add(self.array, np.float32(1), out=self.result)
                pieces = sent(self.result)
            else:
                dropped(self.answers, self.array.nbytes)
                pieces = made(self.array.nbytes)
            for piece in pieces:
                self.requests.put(piece)
            next(self.answers)
            self.done.put(None)


def main():
    others = [Other(json.loads(sys.argv[1])["dense"]) for _ in range(2)]
    print("@@ ready", flush=True)
    try:
        for line in sys.stdin:
            case, _, times = line.rpartition(" ")
            taken = []
            for _ in range(int(times)):
                began = time.perf_counter()
                for each in others:
                    each.asked.put(case)
                for each in others:
                    each.done.get()
                taken.append(time.perf_counter() - began)
            print("@@", json.dumps(taken), flush=True)
    finally:
        for each in others:
            each.process.kill()
            each.process.wait()


if __name__ == "__main__":
    if sys.argv[1] == "--ps":
        serve(int(sys.argv[2]))
    main()
    os._exit(0)
