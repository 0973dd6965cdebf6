"""Steps between a worker and two ps tasks in TensorFlow's v1 Session over gRPC; the client is in the worker.

  python runtime_tensorflow.py '{"table": 8000000, "dense": 6250000, "loop": 300}'

Reads lines "CASE TIMES" and answers each with a line "@@ [seconds of each step]". The ps tasks are processes of their
own, which end with this one.
"""

import json
import os
import socket
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from common import tf1

PS = ("/job:ps/task:0", "/job:ps/task:1")
WORKER = "/job:worker/task:0"
ROWS = 32


def free_ports(count):
    held = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def server(tf, cluster, job, index):
    return tf.train.Server(tf.train.ClusterSpec(cluster), job_name=job, task_index=index)


def changed(tf, size):
    """Read a variable of each ps task on the worker, and write it."""
    done = []
    for task in PS:
        with tf.device(task):
            v = tf.get_variable(
                f"v{size}_{task[-1]}", shape=(size,) if size else (), initializer=tf.zeros_initializer()
            )
        with tf.device(WORKER):
            made = v + 1.0
        with tf.device(task):
            done.append(tf.assign(v, made).op)
    return tf.group(*done)


def rows(tf, size):
    """Gather rows of a table on each ps task, and change them there."""
    done = []
    ids = np.arange(ROWS, dtype="int32") * (size // ROWS)
    for task in PS:
        with tf.device(task):
            table = tf.get_variable(f"t{size}_{task[-1]}", shape=(size, 16), initializer=tf.zeros_initializer())
            found = tf.gather(table, ids)
        with tf.device(WORKER):
            made = found * 0.5 - 1.0
        with tf.device(task):
            done.append(tf.scatter_sub(table, ids, made).op)
    return tf.group(*done)


def loop(tf, count):
    """A carried number goes to a ps task and back in each iteration."""

    def body(i, h):
        with tf.device(PS[0]):
            half = h * 0.5
        with tf.device(WORKER):
            return i + 1, half + 1.0

    with tf.device(WORKER):
        start = (tf.constant(0), tf.constant(0.0))
        return tf.while_loop(lambda i, h: i < count, body, start, parallel_iterations=1)[1]


def flight(tf, count):
    """A number goes to a ps task and back in each iteration; what is carried stays on the worker."""

    def body(i, total):
        with tf.device(WORKER):
            given = tf.cast(i, tf.float32) * 0.5
        with tf.device(PS[0]):
            half = given * 0.5
        with tf.device(WORKER):
            return i + 1, total + half

    with tf.device(WORKER):
        start = (tf.constant(0), tf.constant(0.0))
        return tf.while_loop(lambda i, t: i < count, body, start, parallel_iterations=32)[1]


def main():
    sizes = json.loads(sys.argv[1])
    tf = tf1()
    ports = free_ports(3)
    addresses = [f"localhost:{port}" for port in ports]
    cluster = {"ps": addresses[:2], "worker": addresses[2:]}
    others = [
        subprocess.Popen([sys.executable, __file__, "--ps", json.dumps(cluster), str(index)], stdin=subprocess.PIPE)
        for index in range(2)
    ]
    try:
        worker = server(tf, cluster, "worker", 0)
        cases = {
            "null": changed(tf, 0),
            "dense": changed(tf, sizes["dense"]),
            "rows": rows(tf, sizes["table"]),
            "fewer rows": rows(tf, sizes["table"] // 8),
            "loop": loop(tf, sizes["loop"]),
            "flight": flight(tf, sizes["loop"]),
        }
        calls = {}
        with tf.Session(worker.target) as session:
            session.run(tf.global_variables_initializer())
            for case, fetched in cases.items():
                calls[case] = session.make_callable(fetched)
            n = sizes["loop"]
            assert abs(calls["loop"]() - 2.0) < 1e-3, "the loop has computed something else"
            assert abs(calls["flight"]() / (n * (n - 1) / 8) - 1) < 1e-3, "the loop has computed something else"
            print("@@ ready", flush=True)
            for line in sys.stdin:
                case, _, times = line.rpartition(" ")
                call, taken = calls[case], []
                for _ in range(int(times)):
                    began = time.perf_counter()
                    call()
                    taken.append(time.perf_counter() - began)
                print("@@", json.dumps(taken), flush=True)
    finally:
        for each in others:
            each.kill()
            each.wait()


if __name__ == "__main__":
    if sys.argv[1] == "--ps":
        kept = server(tf1(), json.loads(sys.argv[2]), "ps", int(sys.argv[3]))
        sys.stdin.read()  # until the worker has gone
        os._exit(0)
    main()
    os._exit(0)
