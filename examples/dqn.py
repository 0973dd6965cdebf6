"""A Deep Q-Network as one graph, called once for each interaction with its environment.

The algorithm is full of conditions: an experience is stored unless the episode has just begun, an action is drawn or
computed, the network learns every few interactions, and the target network follows every few hundred. Here all of
these are `cond`s of one graph, and its state (the replay memory, both networks, the counters) are variables that the
graph writes in place. `driven` is the same algorithm with the conditions in Python, which calls a program for each of
the parts: same seeds, same bits, fewer interactions a second. All these programs are machine code as a whole
(`jit_compile`).

    python examples/dqn.py --figure dqn.svg
    python examples/dqn.py --compare
    python examples/dqn.py --environment Acrobot-v1       with `pip install anabranch[rl]`

Mnih et al., "Human-level control through deep reinforcement learning" (2015); Yu et al., "Dynamic Control Flow in
Large-Scale Machine Learning" (2018), section 6.5.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import anabranch as ab
from anabranch import layers, ops, optim

GOAL = 195.0  # mean return of new episodes of CartPole
SPEEDUP = 1.21  # of one graph over conditions in Python
STRIDE = 500  # interactions between two tests
BLOCK = 1024  # of interactions, whose random numbers for exploring are drawn at once


# --- environments ---------------------------------------------------------------------------------------------------


class Environment(Protocol):
    """The environment with which an agent interacts.

    Attributes:
        features: the length of a state.
        actions: how many actions there are.
        solved: the mean return at which learning may end, or None where nobody says.
    """

    features: int
    actions: int
    solved: float | None

    def reset(self) -> np.ndarray:
        """Begin an episode; the first state, [features]."""
        ...

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool]:
        """Take an action: the next state, the reward, whether the episode has ended in it, and whether it is over."""
        ...


class CartPole:
    """The cart with a pole (Barto, Sutton and Anderson, 1983), with the constants of Gymnasium's CartPole-v1.

    >>> environment = CartPole(seed=0)
    >>> environment.reset().round(3)
    array([ 0.014, -0.023, -0.046, -0.048], dtype=float32)
    >>> environment.step(1)[1:]
    (1.0, False, False)
    """

    features, actions, most_steps = 4, 2, 500
    solved: float | None = 250.0

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._state = (0.0, 0.0, 0.0, 0.0)
        self._steps = 0

    def reset(self) -> np.ndarray:
        self._state, self._steps = tuple(self._random.uniform(-0.05, 0.05, 4).tolist()), 0
        return np.array(self._state, "float32")

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool]:
        x, x_dot, theta, theta_dot = self._state
        cosine, sine = math.cos(theta), math.sin(theta)
        force = 10.0 if action == 1 else -10.0
        temporary = (force + 0.05 * theta_dot**2 * sine) / 1.1
        theta_acc = (9.8 * sine - cosine * temporary) / (0.5 * (4.0 / 3.0 - 0.1 * cosine**2 / 1.1))
        x_acc = temporary - 0.05 * theta_acc * cosine / 1.1
        x, x_dot = x + 0.02 * x_dot, x_dot + 0.02 * x_acc
        theta, theta_dot = theta + 0.02 * theta_dot, theta_dot + 0.02 * theta_acc
        self._state, self._steps = (x, x_dot, theta, theta_dot), self._steps + 1
        fallen = abs(x) > 2.4 or abs(theta) > 12 * 2 * math.pi / 360
        return np.array(self._state, "float32"), 1.0, fallen, fallen or self._steps >= self.most_steps


class Gymnasium:
    """An environment of Gymnasium with a vector as its state and a number of actions.

    Args:
        name: as `gymnasium.make` takes it.
        seed: of its first episode.

    Raises:
        ImportError: Gymnasium is not installed.
        ValueError: its states are no vectors, or its actions no numbers.
    """

    def __init__(self, name: str, seed: int) -> None:
        try:
            import gymnasium
        except ImportError as error:
            raise ImportError(
                f"The environment {name!r} comes from Gymnasium, which is not installed: pip install anabranch[rl]. "
                "Without it there is CartPole, which is the default."
            ) from error
        self._environment: Any = gymnasium.make(name)
        shape, actions = self._environment.observation_space.shape, self._environment.action_space
        if shape is None or len(shape) != 1 or not hasattr(actions, "n"):
            raise ValueError(
                f"The environment {name!r} has states of shape {shape} and actions {actions}; expected a vector and a "
                "number of actions (Discrete)."
            )
        self.features, self.actions = int(shape[0]), int(actions.n)
        self.solved: float | None = None if self._environment.spec is None else self._environment.spec.reward_threshold
        self._seed: int | None = seed

    def reset(self) -> np.ndarray:
        state, _ = self._environment.reset(seed=self._seed)
        self._seed = None  # it goes on from there
        return np.asarray(state, "float32")

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool]:
        state, reward, ended, cut, _ = self._environment.step(action)
        return np.asarray(state, "float32"), float(reward), bool(ended), bool(ended or cut)


# --- the agent ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """The settings of an agent.

    Attributes:
        units: of each of the two hidden layers.
        memory: how many experiences are kept.
        batch: experiences that are learnt from at once.
        learn_after: interactions before learning begins.
        learn_every: interactions between two steps of learning.
        follow_every: interactions between two updates of the target network.
        explore_for: interactions in which the chance to explore falls from 1 to `explore_least`.
        explore_least: the chance to explore from then on.
        discount: by which rewards count less, an interaction later.
        learning_rate: of Adam.
        seed: of everything that is random.
    """

    units: int = 64
    memory: int = 20_000
    batch: int = 32
    learn_after: int = 500
    learn_every: int = 4
    follow_every: int = 500
    explore_for: int = 5_000
    explore_least: float = 0.05
    discount: float = 0.95
    learning_rate: float = 1e-3
    seed: int = 0


class Agent:
    """The parts of the algorithm, as functions that build operations on the agent's variables.

    Args:
        features: the length of a state.
        actions: how many there are.
        settings: what it is like.
    """

    def __init__(self, features: int, actions: int, settings: Settings) -> None:
        ab.utils.set_random_seed(settings.seed)
        self.features, self.actions, self.settings = features, actions, settings
        self.network, self.target = self._make_network(), self._make_network()
        self.target.set_weights(self.network.get_weights())
        self.optimizer = optim.Adam(settings.learning_rate)
        self.optimizer.build(self.network.trainable_variables)
        self.dice = ab.random.SeedGenerator(settings.seed)
        self.draws = ab.random.SeedGenerator(settings.seed + 1)
        self.act = ab.function(self.best, jit_compile=True)  # without exploring

        width = 2 * features + 3
        self.memory = ab.Variable(np.zeros((settings.memory, width), "float32"), trainable=False, name="memory")
        self.stored = ab.Variable(np.int32(0), trainable=False, name="stored")

    def _make_network(self) -> ab.Model:
        hidden = [layers.Dense(self.settings.units, "relu") for _ in range(2)]
        return ab.Sequential([ab.Input((self.features,)), *hidden, layers.Dense(self.actions)])

    def store(self, state: Any, action: Any, reward: Any, next_state: Any, goes_on: Any) -> None:
        """Put an experience into the replay memory, over the oldest one."""
        numbers = ops.stack([ops.cast(action, "float32"), reward, goes_on])
        row = ops.concatenate([state, next_state, numbers])
        place = ops.reshape(self.stored % self.settings.memory, (1,))
        self.memory.scatter_update(ab.IndexedSlices(row[None], place, self.memory.shape))
        self.stored.assign_add(1)

    def plan(self, count: Any) -> Any:
        """Draw the actions of the BLOCK interactions from number `count` on: -1 stands for the best one."""
        settings = self.settings
        numbers = ab.random.uniform((2, BLOCK), seed=self.dice)
        done = ops.cast(count + ops.arange(BLOCK), "float32") / settings.explore_for
        chance = ops.maximum(settings.explore_least, 1.0 - (1.0 - settings.explore_least) * done)
        return ops.where(numbers[0] < chance, ops.cast(numbers[1] * self.actions, "int32"), -1)

    def best(self, state: Any) -> Any:
        """The action that the network thinks best."""
        return ops.argmax(self.network(state[None])[0])

    def learn(self) -> None:
        """Learn from a batch of experiences (Q-learning, with Huber's loss)."""
        settings = self.settings
        held = ops.cast(ops.minimum(self.stored, settings.memory), "float32")
        rows = ops.cast(ab.random.uniform((settings.batch,), seed=self.draws) * held, "int32")
        drawn = ops.take(self.memory, rows, axis=0)
        states, next_states = drawn[:, : self.features], drawn[:, self.features : -3]
        actions, rewards, goes_on = ops.unstack(drawn[:, -3:], axis=1)
        worth = rewards + settings.discount * goes_on * ops.max(self.target(next_states), axis=1)
        guess = ops.sum(self.network(states) * ops.one_hot(ops.cast(actions, "int32"), self.actions), axis=1)
        error = ops.abs(ops.stop_gradient(worth) - guess)
        loss = ops.mean(ops.where(error < 1.0, 0.5 * error * error, error - 0.5))
        variables = self.network.trainable_variables
        self.optimizer.apply(ab.gradients(loss, variables), variables)

    def follow(self) -> None:
        """Make the target network what the network is."""
        for copy, variable in zip(self.target.variables, self.network.variables, strict=True):
            copy.assign(variable)


# --- the drivers ----------------------------------------------------------------------------------------------------

Interact = Callable[[np.ndarray, float, float, np.ndarray], int]


def in_graph(agent: Agent) -> Interact:
    """The algorithm as one graph: each interaction is one call of one program."""
    settings = agent.settings
    count = ab.Variable(np.int32(0), trainable=False, name="count")
    plan = ab.Variable(np.zeros(BLOCK, "int32"), trainable=False, name="plan")
    last_state = ab.Variable(np.zeros(agent.features, "float32"), trainable=False, name="last_state")
    last_action = ab.Variable(np.int32(0), trainable=False, name="last_action")

    def when(condition: Any, act: Callable[[], Any]) -> None:
        """Act if the condition holds."""

        def acting() -> tuple[()]:
            act()
            return ()

        ab.cond(condition, acting, tuple)

    @ab.function(jit_compile=True)
    def interact(next_state: Any, reward: Any, goes_on: Any, state: Any) -> Any:
        now = count.value
        when(now > 0, lambda: agent.store(last_state.value, last_action.value, reward, next_state, goes_on))
        learns = ops.logical_and(now >= settings.learn_after, ops.equal(now % settings.learn_every, 0))
        when(learns, agent.learn)
        when(ops.equal(now % settings.follow_every, 0), agent.follow)
        when(ops.equal(now % BLOCK, 0), lambda: plan.assign(agent.plan(now)))
        planned = plan.value[now % BLOCK]
        action = ab.cond(planned < 0, lambda: agent.best(state), lambda: planned)
        last_state.assign(state)
        last_action.assign(action)
        count.assign(now + 1)
        return action

    def call(next_state: np.ndarray, reward: float, goes_on: float, state: np.ndarray) -> int:
        return int(interact(next_state, np.float32(reward), np.float32(goes_on), state))

    return call


def driven(agent: Agent) -> Interact:
    """The same algorithm driven from Python: it decides what to do, and calls a program for each part."""
    settings = agent.settings
    parts = (agent.store, agent.plan, agent.best, agent.learn, agent.follow)
    programs: list[Callable[..., Any]] = [ab.function(part, jit_compile=True) for part in parts]
    store, plan, best, learn, follow = programs
    count, planned, last_state, last_action = 0, np.zeros(0, "int32"), np.zeros(0, "float32"), np.int32(0)

    def call(next_state: np.ndarray, reward: float, goes_on: float, state: np.ndarray) -> int:
        nonlocal count, planned, last_state, last_action
        if count > 0:
            store(last_state, last_action, np.float32(reward), next_state, np.float32(goes_on))
        if count >= settings.learn_after and count % settings.learn_every == 0:
            learn()
        if count % settings.follow_every == 0:
            follow()
        if count % BLOCK == 0:
            planned = plan(np.int32(count))
        action = planned[count % BLOCK]
        if action < 0:
            action = best(state)
        count, last_state, last_action = count + 1, state, np.int32(action)
        return int(action)

    return call


DRIVERS: dict[str, Callable[[Agent], Interact]] = {"in the graph": in_graph, "from Python": driven}


class Run:
    """An agent that interacts with an environment.

    Attributes:
        returns: of each episode that was finished.
        actions: all that were taken.
    """

    def __init__(self, environment: Environment, interact: Interact) -> None:
        self.returns: list[float] = []
        self.actions: list[int] = []
        self._environment, self._interact = environment, interact
        self._state = self._next_state = environment.reset()
        self._reward, self._goes_on, self._total = 0.0, 1.0, 0.0

    def go_on(self, interactions: int) -> float:
        """Let them interact so many times; the seconds that it took."""
        began = time.perf_counter()
        for _ in range(interactions):
            action = self._interact(self._next_state, self._reward, self._goes_on, self._state)
            self.actions.append(action)
            self._state, self._reward, ended, over = self._environment.step(action)
            self._next_state, self._goes_on, self._total = self._state, 1.0 - ended, self._total + self._reward
            if over:
                self.returns.append(self._total)
                self._state, self._total = self._environment.reset(), 0.0
        return time.perf_counter() - began


def score(environment: Environment, act: Callable[[np.ndarray], Any], episodes: int) -> float:
    """The mean return of episodes whose actions are chosen by a function of the state."""
    total = 0.0
    for _ in range(episodes):
        state, over = environment.reset(), False
        while not over:
            state, reward, _, over = environment.step(int(act(state)))
            total += reward
    return total / episodes


def goal_of(name: str, seed: int) -> float:
    """The mean return to reach: for CartPole GOAL, for others three quarters of the way from chance to solved.

    That is from the mean return of actions by chance to the one at which Gymnasium calls the environment solved; where
    it names none, it is that of actions by chance.
    """
    if name == "CartPole":
        return GOAL
    environment, random = make_environment(name, seed), np.random.default_rng(seed)
    by_chance = score(environment, lambda _: random.integers(environment.actions), 50)
    solved = by_chance if environment.solved is None else environment.solved
    return by_chance + 0.75 * (solved - by_chance)


def make_environment(name: str, seed: int) -> Environment:
    """The environment of a name: our own "CartPole", or one of Gymnasium's."""
    return CartPole(seed) if name == "CartPole" else Gymnasium(name, seed)


def compare(name: str, interactions: int, settings: Settings) -> tuple[float, bool]:
    """The same run by both drivers, in turns; how many times as fast the graph is, and whether they did the same."""
    runs: dict[str, Run] = {}
    for driver, make in DRIVERS.items():
        environment = make_environment(name, settings.seed)
        runs[driver] = Run(environment, make(Agent(environment.features, environment.actions, settings)))
        runs[driver].go_on(interactions // 2)  # programs are compiled meanwhile
    chunk = max(interactions // 40, 1)
    seconds = {driver: [run.go_on(chunk) / chunk for _ in range(20)] for driver, run in runs.items()}
    for driver, each in seconds.items():
        print(f"{driver:12}: {1 / np.median(each):7.0f} interactions a second, {len(runs[driver].returns)} episodes")
    first, second = runs.values()
    same = first.actions == second.actions and first.returns == second.returns
    one, other = seconds.values()
    ratio = float(np.median(other) / np.median(one))
    print(f"The graph makes {ratio:.2f} times as many. The same actions and returns: {same}")
    return ratio, same


def train(environment: Environment, test: Environment, agent: Agent, interactions: int) -> list[float]:
    """Interact and learn until 10 episodes of a test solve it; the mean returns of tests, STRIDE interactions apart."""
    run = Run(environment, in_graph(agent))
    solved = math.inf if environment.solved is None else environment.solved
    tests: list[float] = []
    for done in range(STRIDE, max(interactions, STRIDE) + 1, STRIDE):
        run.go_on(STRIDE)
        tests.append(score(test, agent.act, 10))
        if done % (4 * STRIDE) == 0 or tests[-1] >= solved:
            latest = np.mean(run.returns[-20:]) if run.returns else math.nan
            print(f"interaction {done:6}: mean return of 20 episodes {latest:5.1f}, without exploring {tests[-1]:5.1f}")
        if tests[-1] >= solved:
            break
    return tests


def draw_learning(path: str, name: str, tests: Sequence[float], goal: float) -> None:
    """The mean returns of tests while the agent learns, and the goal."""
    from drawing import line_chart

    interactions = [STRIDE * number for number in range(1, len(tests) + 1)]
    lines = {"10 episodes without exploring": (interactions, list(tests))}
    lines["the goal"] = ([interactions[0], interactions[-1]], [goal, goal])
    drawn = line_chart(f"A deep Q-network learns {name}", "interactions", "mean return", lines)
    Path(path).write_text(drawn, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and test; the mean return of 50 episodes without exploring. With `--compare`, the ratio of the speeds."""
    parser = argparse.ArgumentParser(description="Learn to balance a pole with a deep Q-network.")
    parser.add_argument("--interactions", type=int, default=200_000, help="at most")
    parser.add_argument("--environment", default="CartPole", help="CartPole, or the name of one of Gymnasium's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compare", action="store_true", help="time the graph against Python's conditions")
    parser.add_argument(
        "--least", type=float, help="fail if the mean return of new episodes, or with --compare the ratio, is lower"
    )
    parser.add_argument("--figure", help="where to draw the returns while learning, as SVG")
    options = parser.parse_args(arguments)
    settings = Settings(seed=options.seed)
    began = time.perf_counter()
    if options.compare:
        return check_ratio(*compare(options.environment, options.interactions, settings), options.least)

    goal = goal_of(options.environment, options.seed + 3) if options.least is None else options.least
    print(f"The goal: a mean return of {goal:.1f} in 50 new episodes of {options.environment}.")
    environment, test = (make_environment(options.environment, options.seed + offset) for offset in (0, 1))
    agent = Agent(environment.features, environment.actions, settings)
    tests = train(environment, test, agent, options.interactions)
    reached = score(make_environment(options.environment, options.seed + 2), agent.act, 50)
    print(f"\nMean return of 50 new episodes: {reached:.1f}")
    print(f"All of it took {time.perf_counter() - began:.0f} s.")
    if options.figure:
        draw_learning(options.figure, options.environment, tests, goal)
    if reached < goal:
        raise SystemExit(f"The goal, a mean return of {goal:.1f}, was missed: it is {reached:.1f}.")
    return reached


def check_ratio(ratio: float, same: bool, least: float | None) -> float:
    """The ratio of the speeds, if it is high enough and the runs were the same."""
    least = SPEEDUP if least is None else least
    if not same:
        raise SystemExit("The graph and Python's conditions took other actions, which should be the same ones.")
    if ratio < least:
        raise SystemExit(f"The goal, {least:.2f} times as many interactions a second, was missed: it is {ratio:.2f}.")
    return ratio


if __name__ == "__main__":
    main()
