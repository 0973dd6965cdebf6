"""W9: peak memory of W1's training step at batch 128, T 1000. peak_rss_mb is the process
peak; rss_before_step_mb the peak before the first step; the inputs are 2 x 262 MB of that."""

import w01_lstm_train as w1

PARAMS = [dict(B=128, T=1000, budget=1, reps=2)]
PEERS = {k: w1.PEERS[k] for k in ("torch_eager", "jax_scan", "tf1_dynamic_rnn", "tf2_while", "keras_tf", "numpy_raw")}
