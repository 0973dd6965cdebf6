"""W11: cold process: seconds for the imports, and from process start to the end of the first
trained step of W6's model (batch 32). median_ms is import+build+step; four processes after a first."""

import os
import subprocess
import sys

import numpy as np

PARAMS = [dict(runs=4)]
KERAS = """
import keras; t1 = time.perf_counter()
import numpy as np; from w06_mlp_fit import keras_model, SIZES
r = np.random.RandomState(0)
w = [a for i, o in zip(SIZES, SIZES[1:]) for a in (r.standard_normal((i, o)).astype('f4') * .05, np.zeros(o, 'f4'))]
m = keras_model(w)
m.fit(r.standard_normal((32, 784)).astype('f4'), np.arange(32) % 10, batch_size=32, verbose=0)
"""
TORCH = """
import torch; t1 = time.perf_counter()
n = torch.nn
m = n.Sequential(n.Linear(784, 512), n.ReLU(), n.Linear(512, 512), n.ReLU(), n.Linear(512, 10))
o = torch.optim.Adam(m.parameters())
l = n.functional.cross_entropy(m(torch.randn(32, 784)), torch.arange(32) % 10)
l.backward(); o.step()
"""
JAX = """
import jax, jax.numpy as jnp; t1 = time.perf_counter()
import numpy as np
r = np.random.RandomState(0)
w = [a for i, o in ((784, 512), (512, 512), (512, 10))
     for a in (r.standard_normal((i, o)).astype('f4') * .05, np.zeros(o, 'f4'))]
def loss(w, x, y):
    for i in range(0, 6, 2):
        x = x @ w[i] + w[i + 1]
        x = jax.nn.relu(x) if i < 4 else x
    return -jnp.take_along_axis(jax.nn.log_softmax(x), y[:, None], 1).mean()
def train(w, m, v, x, y):
    g = jax.grad(loss)(w, x, y)
    m = [.9 * a + .1 * b for a, b in zip(m, g)]; v = [.999 * a + .001 * b * b for a, b in zip(v, g)]
    return [a - 3e-4 * b / (jnp.sqrt(c) + 1e-7) for a, b, c in zip(w, m, v)], m, v
z = [np.zeros_like(a) for a in w]
jax.block_until_ready(jax.jit(train)(w, z, z, r.standard_normal((32, 784)).astype('f4'), np.arange(32) % 10))
"""
TF1 = """
import tensorflow as tf; t1 = time.perf_counter()
import numpy as np
tf = tf.compat.v1; tf.disable_v2_behavior()
r = np.random.RandomState(0)
x = h = tf.placeholder(tf.float32, [None, 784]); y = tf.placeholder(tf.int32, [None])
for i, o in ((784, 512), (512, 512), (512, 10)):
    h = tf.matmul(h, tf.Variable(r.standard_normal((i, o)).astype('f4') * .05)) + tf.Variable(np.zeros(o, 'f4'))
    h = tf.nn.relu(h) if o > 10 else h
l = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=h))
t = tf.train.AdamOptimizer().minimize(l)
s = tf.Session(); s.run(tf.global_variables_initializer())
s.run(t, {x: r.standard_normal((32, 784)).astype('f4'), y: np.arange(32) % 10})
"""
NUMPY = "import numpy; t1 = time.perf_counter()"
PYTENSOR = "import pytensor, pytensor.tensor; t1 = time.perf_counter()"
CODE = dict(
    keras_tf=KERAS,
    keras_jax=KERAS,
    keras_torch=KERAS,
    torch_raw=TORCH,
    jax_raw=JAX,
    tf1_session=TF1,
    pytensor_import=PYTENSOR,
    numpy_import=NUMPY,
)


def make(code):
    def peer(p):
        imp, tot, rss = [], [], 0
        src = (
            "import time; t0 = time.perf_counter()\n" + code + "\nt2 = time.perf_counter()\nimport resource, os\n"
            "rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
            "print(t1 - t0, t2 - t0, rss, flush=True); os._exit(0)"
        )
        here = os.path.dirname(os.path.abspath(__file__))
        for _ in range(p["runs"] + 1):
            r = subprocess.run([sys.executable, "-c", src], capture_output=True, text=True, check=True, cwd=here)
            a, b, rss = map(float, r.stdout.split()[-3:])
            imp.append(a)
            tot.append(b * 1e3)
        q = lambda k: round(float(np.percentile(tot[1:], k)), 1)
        return dict(
            median_ms=q(50),
            p10=q(10),
            p90=q(90),
            reps=p["runs"],
            peak_rss_mb=round(rss),
            import_s=round(float(np.median(imp[1:])), 3),
            first_process_ms=round(tot[0]),
            compile_or_first_step_s=None,
            loss_check=[],
        )

    return peer


PEERS = {k: make(c) for k, c in CODE.items()}
