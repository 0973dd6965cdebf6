"""W17: outside of graphs. Ten ops on 1,000 float32, a step of a small MLP by hand, and the steps of Keras's scripts
of an actor-critic and a DQN, which call models and a tape step by step. loss_check: a sum of results, or the first
losses."""

import time

import numpy as np

from common import bench, rand

PARAMS = [dict(kind=kind) for kind in ("ops", "mlp", "actor_critic", "dqn")]
CALLS, BLOCKS, STEPS, BATCH = 200, 21, 10, 32


# --- ten ops ----------------------------------------------------------------------------------------------------------


def ten_ops(ops, x, y, z, value):
    """A step that makes each of ten calls as often: the facts' table as one figure."""

    def step():
        for _ in range(CALLS):
            a = x * y
            a = x * y + 1.0
            a = ops.tanh(x)
            a = ops.reshape(x, (10, 100))
            b = ops.sum(x)
            b = ops.sum(a, 1)
            b = ops.mean(x)
            a = x[3:10]
            a = ops.where(x > 0, x, y)
            b = z * 0.5 + 1.0
        return value(ops.sum(a)) + value(b)

    return dict(bench(step, budget_s=3), parts_us=one_by_one(ops, x, y, z))


def one_by_one(ops, x, y, z):
    """The microseconds of each of the ten calls, as the median of blocks of CALLS."""
    rows = ops.reshape(x, (10, 100))
    calls = {
        "x * y": lambda: x * y,
        "x * y + 1": lambda: x * y + 1.0,
        "tanh(x)": lambda: ops.tanh(x),
        "reshape(x, (10, 100))": lambda: ops.reshape(x, (10, 100)),
        "sum(x)": lambda: ops.sum(x),
        "sum(rows, 1)": lambda: ops.sum(rows, 1),
        "mean(x)": lambda: ops.mean(x),
        "x[3:10]": lambda: x[3:10],
        "where(x > 0, x, y)": lambda: ops.where(x > 0, x, y),
        "scalar * 0.5 + 1": lambda: z * 0.5 + 1.0,
    }
    return {name: round(float(np.median([block_of(call) for _ in range(BLOCKS)])), 3) for name, call in calls.items()}


def block_of(call):
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - began) * 1e6 / CALLS


def numbers():
    draw = rand()
    return draw(1000), draw(1000), np.float32(0.5)


# --- a step by hand ---------------------------------------------------------------------------------------------------


def mlp_data():
    draw = rand(1)
    return draw(BATCH, 8), draw(BATCH, 1), draw(8, 32, k=0.3), np.zeros(32, "f4"), draw(32, 1, k=0.3), np.zeros(1, "f4")


# --- Keras's loops ----------------------------------------------------------------------------------------------------


def network(keras, heads):
    """A hidden layer and heads, with the same weights everywhere."""
    inputs = keras.layers.Input(shape=(4,))
    common = keras.layers.Dense(128, activation="relu")(inputs)
    outputs = [keras.layers.Dense(size, activation=activation)(common) for size, activation in heads]
    model = keras.Model(inputs=inputs, outputs=outputs if len(outputs) > 1 else outputs[0])
    draw = rand(2)
    model.set_weights([draw(*w.shape, k=0.2) if len(w.shape) > 1 else np.zeros(w.shape, "f4") for w in model.weights])
    return model


def actor_critic(keras, tape):
    """examples/keras_io/rl/actor_critic_cartpole.py: an episode of STEPS made states, and its update."""
    ops = keras.ops
    model = network(keras, [(2, "softmax"), (1, None)])
    optimizer, huber = keras.optimizers.Adam(learning_rate=0.01), keras.losses.Huber()
    states, draw = rand(3)(STEPS, 4), np.random.RandomState(4)

    def step():
        with tape() as t:
            action_probs_history, critic_value_history, rewards_history = [], [], []
            for state in states:
                state = ops.expand_dims(ops.convert_to_tensor(state), 0)
                action_probs, critic_value = model(state)
                critic_value_history.append(critic_value[0, 0])
                probabilities = np.squeeze(ops.convert_to_numpy(action_probs)).astype("f8")
                action = draw.choice(2, p=probabilities / probabilities.sum())
                action_probs_history.append(ops.log(action_probs[0, action]))
                rewards_history.append(1.0)
            returns, discounted_sum = [], 0.0
            for r in rewards_history[::-1]:
                discounted_sum = r + 0.99 * discounted_sum
                returns.insert(0, discounted_sum)
            returns = np.array(returns)
            returns = ((returns - np.mean(returns)) / (np.std(returns) + 1e-7)).tolist()
            actor_losses, critic_losses = [], []
            for log_prob, value, ret in zip(action_probs_history, critic_value_history, returns):
                diff = ret - value
                actor_losses.append(-log_prob * diff)
                critic_losses.append(huber(ops.expand_dims(value, 0), ops.expand_dims(ret, 0)))
            loss_value = sum(actor_losses) + sum(critic_losses)
        grads = t.gradient(loss_value, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        return float(loss_value)

    return bench(step, budget_s=5)


def dqn(keras, tape):
    """examples/keras_io/rl/deep_q_network_breakout.py on states of four numbers: four actions, and an update."""
    ops = keras.ops
    model, model_target = network(keras, [(2, "linear")]), network(keras, [(2, "linear")])
    optimizer, loss_function = keras.optimizers.Adam(learning_rate=0.00025, clipnorm=1.0), keras.losses.Huber()
    draw = rand(5)
    state_sample, state_next_sample = draw(BATCH, 4), draw(BATCH, 4)
    rewards_sample = np.ones(BATCH, "f4")
    action_sample = (draw(BATCH) > 0).astype("int32")
    done_sample = np.zeros(BATCH, "f4")

    def step():
        for state in state_sample[:4]:
            state_tensor = ops.expand_dims(ops.convert_to_tensor(state), 0)
            action_probs = model(state_tensor, training=False)
            int(ops.argmax(action_probs[0]))
        future_rewards = model_target(state_next_sample)
        updated_q_values = rewards_sample + 0.99 * ops.max(future_rewards, axis=1)
        updated_q_values = updated_q_values * (1 - done_sample) - done_sample
        masks = ops.one_hot(action_sample, 2)
        with tape() as t:
            q_values = model(state_sample)
            q_action = ops.sum(ops.multiply(q_values, masks), axis=1)
            loss = loss_function(updated_q_values, q_action)
        grads = t.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        return float(loss)

    return bench(step, budget_s=5)


LOOPS = {"actor_critic": actor_critic, "dqn": dqn}


# --- peers ------------------------------------------------------------------------------------------------------------


def torch_eager(p):
    import torch

    if p["kind"] == "ops":
        return ten_ops(torch, *map(torch.tensor, numbers()), float)
    x, y, *weights = map(torch.tensor, mlp_data())
    for w in weights:
        w.requires_grad_()

    def step():
        w1, b1, w2, b2 = weights
        loss = torch.mean((torch.tanh(x @ w1 + b1) @ w2 + b2 - y) ** 2)
        grads = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for w, g in zip(weights, grads):
                w -= 0.1 * g
        return float(loss)

    return bench(step, budget_s=3)


def keras_torch(p):
    import keras
    import torch

    with torch.no_grad():
        return ten_ops(keras.ops, *map(torch.tensor, numbers()), float)


def keras_tf(p):
    import keras
    import tensorflow as tf

    if p["kind"] in LOOPS:
        return LOOPS[p["kind"]](keras, tf.GradientTape)
    if p["kind"] == "ops":
        return ten_ops(keras.ops, *map(tf.constant, numbers()), float)
    return by_hand(tf, *mlp_data(), tf.reduce_mean)


def by_hand(tf, x, y, w1, b1, w2, b2, mean):
    """A step of a small MLP with a tape and SGD; `tf` has Variable, GradientTape and tanh."""
    x, y = tf.constant(x), tf.constant(y)
    weights = [tf.Variable(w) for w in (w1, b1, w2, b2)]

    def step():
        with tf.GradientTape() as tape:
            hidden = tf.tanh(x @ weights[0] + weights[1])
            loss = mean((hidden @ weights[2] + weights[3] - y) ** 2)
        for w, g in zip(weights, tape.gradient(loss, weights)):
            w.assign_sub(0.1 * g)
        return float(loss)

    return bench(step, budget_s=3)


PEERS = {f.__name__: f for f in (torch_eager, keras_torch, keras_tf)}
