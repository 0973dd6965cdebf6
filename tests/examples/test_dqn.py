"""The DQN example: one graph against conditions in Python, its parts against NumPy, and that it learns."""

import doctest
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import anabranch as ab


def settings(example: ModuleType, **changed: Any) -> Any:
    """Those of a small agent that soon learns."""
    small = {"units": 16, "memory": 300, "batch": 16, "learn_after": 100, "follow_every": 50, "explore_for": 600}
    return example.Settings(**{**small, **changed})


# --- the two drivers ------------------------------------------------------------------------------------------------


def test_both_drivers_make_the_same_run(example: ModuleType) -> None:
    found: list[tuple[Any, Any, Any]] = []
    for make in example.DRIVERS.values():
        agent = example.Agent(4, 2, settings(example))
        run = example.Run(example.CartPole(5), make(agent))
        run.go_on(1500)  # the memory goes round, and a block ends
        weights = agent.network.get_weights() + agent.target.get_weights()
        found.append((run, weights, [agent.memory.numpy(), agent.stored.numpy()]))
    (first, *first_state), (second, *second_state) = found
    assert first.actions == second.actions
    assert first.returns == second.returns
    for one, other in zip(*[weights + held for weights, held in (first_state, second_state)], strict=True):
        np.testing.assert_array_equal(one, other)


def test_other_seeds_make_other_runs(example: ModuleType) -> None:
    runs: list[list[int]] = []
    for seed in (0, 1):
        run = example.Run(example.CartPole(5), example.in_graph(example.Agent(4, 2, settings(example, seed=seed))))
        run.go_on(200)
        runs.append(run.actions)
    assert runs[0] != runs[1]


@pytest.mark.parametrize("driver", ["in the graph", "from Python"])
def test_what_is_done_when(example: ModuleType, driver: str) -> None:
    agent = example.Agent(4, 2, settings(example, learn_after=8, learn_every=3, follow_every=5, memory=7))
    interact = example.DRIVERS[driver](agent)
    random = np.random.default_rng(0)
    states = random.normal(size=(15, 4)).astype("float32")
    before = agent.network.get_weights()
    learnt: list[int] = []
    followed: list[int] = []
    for number, state in enumerate(states):
        steps, target = int(agent.optimizer.iterations), agent.target.get_weights()
        interact(state, float(number), 1.0, state)
        assert int(agent.stored.numpy()) == number
        if int(agent.optimizer.iterations) > steps:
            learnt.append(number)
        if any((one != other).any() for one, other in zip(agent.target.get_weights(), target, strict=True)):
            followed.append(number)
    assert learnt == [9, 12]
    assert followed == [10]  # at 5 there is nothing to follow yet
    assert any((one != other).any() for one, other in zip(agent.network.get_weights(), before, strict=True))
    # Experiences 7 to 13 are left, the oldest of them in row 0: each from one state to the next, with its reward.
    memory = agent.memory.numpy()
    np.testing.assert_array_equal(memory[:, :4], states[7:14])
    np.testing.assert_array_equal(memory[:, 4:8], states[8:15])
    np.testing.assert_array_equal(memory[:, 9:], np.stack([np.arange(8.0, 15.0), np.ones(7)], axis=1))


def source_of(function: Any) -> str:
    """The text of a function's only program."""
    (trace,) = function._traces.values()
    return trace._programs.general().source


def test_all_is_machine_code(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one graph, and each part that Python drives: whole steps, with no operation left to Python."""
    made: list[Any] = []
    make = ab.function

    def function(*arguments: Any, **options: Any) -> Any:
        if not arguments:
            return lambda python_function: function(python_function, **options)
        made.append(make(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(ab, "function", function)
    for driver in example.DRIVERS.values():
        example.Run(example.CartPole(5), driver(example.Agent(4, 2, settings(example)))).go_on(130)
    sources = [source_of(each) for each in made if each.trace_count()]
    assert len(sources) == 6
    for source in sources:
        step = source[source.index("def step(") :].splitlines()
        lines = [line for line in step if line.strip() not in ("", "hold_interrupts()")]  # which guards what is written
        assert len(lines) == 3, source
        assert "# native: " in lines[1]


def test_machine_code_learns_what_the_operations_say(example: ModuleType) -> None:
    agents = [example.Agent(4, 2, settings(example)) for _ in range(2)]
    random = np.random.default_rng(0)
    memory = random.normal(size=agents[0].memory.shape).astype("float32")
    memory[:, 8::2] = random.integers(0, 2, memory[:, 8::2].shape)  # actions, and whether it goes on
    for agent, jit in zip(agents, (True, False), strict=True):
        agent.memory.assign(memory)
        agent.stored.assign(np.int32(1000))
        learn = ab.function(agent.learn, jit_compile=jit)
        for _ in range(30):
            learn()
        assert ("# native: " in source_of(learn)) == jit
        np.testing.assert_array_equal(agent.draws.state, [1, 30])
    for one, other in zip(*[agent.network.get_weights() for agent in agents], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    assert (agents[0].network.get_weights()[0] != agents[0].target.get_weights()[0]).any()


# --- the parts ------------------------------------------------------------------------------------------------------


def test_learning_is_a_step_of_q_learning(example: ModuleType) -> None:
    agent = example.Agent(3, 2, settings(example, memory=4, batch=50, discount=0.9))
    agent.optimizer = ab.optim.SGD(0.5)
    random = np.random.default_rng(0)
    agent.target.set_weights([random.normal(size=w.shape).astype("float32") for w in agent.target.get_weights()])
    state, following = random.normal(size=(2, 3)).astype("float32")
    store, learn = ab.function(agent.store), ab.function(agent.learn)
    store(state, np.int32(1), np.float32(0.3), following, np.float32(1.0))  # the only one: all rows are this one

    wanted = 0.3 + 0.9 * agent.target.predict(following[None], verbose=0)[0].max()
    guess = agent.network.predict(state[None], verbose=0)[0]
    error = np.clip(guess[1] - wanted, -1, 1)  # the derivative of Huber's loss
    bias = agent.network.get_weights()[-1]
    learn()
    np.testing.assert_allclose(agent.network.get_weights()[-1], bias - [0, 0.5 * error], rtol=1e-5)


def test_what_has_ended_is_worth_its_reward(example: ModuleType) -> None:
    agent = example.Agent(3, 2, settings(example, memory=4, batch=8))
    agent.optimizer = ab.optim.SGD(0.5)
    agent.target.set_weights([100 * np.ones_like(w) for w in agent.target.get_weights()])
    state = np.zeros(3, "float32")
    ab.function(agent.store)(state, np.int32(0), np.float32(0.25), state, np.float32(0.0))
    ab.function(agent.learn)()  # from a guess of 0
    np.testing.assert_allclose(agent.network.get_weights()[-1], [0.5 * 0.25, 0], rtol=1e-6)


def test_exploring_fades(example: ModuleType) -> None:
    agent = example.Agent(4, 3, settings(example, explore_for=4096, explore_least=0.1))
    plan = ab.function(agent.plan)
    blocks = [plan(np.int32(begin)) for begin in (0, 1024, 2048, 3072, 40960)]
    explored = [float(np.mean(block >= 0)) for block in blocks]
    np.testing.assert_allclose(explored, [0.8875, 0.6625, 0.4375, 0.2125, 0.1], atol=0.05)
    assert all(block.min() == -1 and block.max() == 2 for block in blocks)
    counts = np.bincount(np.concatenate(blocks) + 1)[1:]
    assert counts.min() > 0.85 * counts.max()


def test_it_learns(example: ModuleType) -> None:
    quick = {"memory": 4000, "discount": 0.95}
    agent = example.Agent(4, 2, settings(example, units=32, batch=32, learn_every=1, follow_every=100, **quick))
    before = example.score(example.CartPole(1), agent.act, 10)
    example.Run(example.CartPole(1), example.in_graph(agent)).go_on(2000)
    assert example.score(example.CartPole(1), agent.act, 10) > 4 * before


# --- environments ---------------------------------------------------------------------------------------------------


def test_cart_pole_is_over_after_500_steps(example: ModuleType) -> None:
    environment = example.CartPole(0)
    state, steps, over, ended = environment.reset(), 0, False, True
    while not over:  # a hand-made policy that balances
        state, reward, ended, over = environment.step(int(state[2] + 0.5 * state[3] + 0.1 * state[1] > 0))
        assert reward == 1.0
        steps += 1
    assert (steps, ended) == (500, False)


def test_cart_pole_falls(example: ModuleType) -> None:
    environment = example.CartPole(0)
    environment.reset()
    ends = [environment.step(1)[2:] for _ in range(12)]
    assert ends[0] == (False, False)
    assert ends[-1] == (True, True)


def test_gymnasium_that_is_missing_is_told(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ImportError, match=r"'Acrobot-v1'.*not installed: pip install anabranch\[rl\].*CartPole"):
        example.make_environment("Acrobot-v1", 0)


class FakeGymnasium:
    """As much of Gymnasium as the example uses: an environment that is over after three steps."""

    class Space:
        def __init__(self, **attributes: Any) -> None:
            vars(self).update(attributes)

    def __init__(self, shape: tuple[int, ...] = (2,), solved: float | None = None) -> None:
        self.shape = shape
        self.spec = self.Space(reward_threshold=solved)
        self.seeds: list[int | None] = []

    def make(self, name: str) -> Any:
        self.observation_space, self.action_space = self.Space(shape=self.shape), self.Space(n=3)
        return self

    def reset(self, seed: int | None) -> tuple[np.ndarray, dict[str, Any]]:
        self.seeds.append(seed)
        self.steps = 0
        return np.zeros(self.shape), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.full(self.shape, self.steps), 2, self.steps == 3 and action == 0, self.steps == 3, {}


def test_environments_of_gymnasium_plug_in(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeGymnasium()
    monkeypatch.setitem(sys.modules, "gymnasium", fake)
    environment = example.make_environment("Three-v0", 4)
    agent = example.Agent(environment.features, environment.actions, settings(example))
    run = example.Run(environment, example.in_graph(agent))
    run.go_on(10)
    assert (agent.features, agent.actions, run.returns) == (2, 3, [6.0, 6.0, 6.0])
    assert fake.seeds == [4, None, None, None]
    assert agent.memory.numpy()[2, -1] == (0.0 if run.actions[2] == 0 else 1.0)  # cut off is not the same as ended


def test_gymnasium_with_other_spaces_is_refused(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", FakeGymnasium((3, 3)))
    with pytest.raises(ValueError, match=r"'Image-v0' has states of shape \(3, 3\).*expected a vector"):
        example.make_environment("Image-v0", 0)


def test_gymnasium_itself(example: ModuleType) -> None:
    pytest.importorskip("gymnasium", reason="Gymnasium is an optional dependency of the example")
    ours, theirs = example.CartPole(0), example.make_environment("CartPole-v1", 3)
    ours.reset()
    ours._state = tuple(theirs.reset().astype("float64").tolist())
    for action in (1, 1, 0, 1, 0):
        np.testing.assert_allclose(ours.step(action)[0], theirs.step(action)[0], rtol=1e-5)


# --- the command line -----------------------------------------------------------------------------------------------


def test_comparing_tells_that_runs_are_the_same(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert example.main(["--compare", "--interactions", "400", "--least", "0"]) > 0
    printed = capsys.readouterr().out
    assert "The same actions and returns: True" in printed
    assert printed.count("interactions a second") == 2


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ((1.2, True), r"The goal, 1.21 times as many interactions a second, was missed: it is 1.20."),
        ((9.9, False), r"The graph and Python's conditions took other actions"),
    ],
)
def test_comparing_fails(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, found: tuple[float, bool], message: str
) -> None:
    monkeypatch.setattr(example, "compare", lambda *_: found)
    with pytest.raises(SystemExit, match=message):
        example.main(["--compare"])


def test_a_ratio_that_is_high_enough_is_returned(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example, "compare", lambda *_: (1.22, True))
    assert example.main(["--compare"]) == 1.22


def test_too_low_a_return_is_a_failure_with_a_figure(
    example: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figure = tmp_path / "dqn.svg"
    with pytest.raises(SystemExit, match=r"The goal, a mean return of 501.0, was missed: it is \d+\.\d\."):
        example.main(["--interactions=1000", "--least=501", f"--figure={figure}"])
    assert "The goal: a mean return of 501.0 in 50 new episodes of CartPole." in capsys.readouterr().out
    lines = [part for part in ElementTree.fromstring(figure.read_text()) if part.tag.endswith("polyline")]
    assert [line.attrib["points"].count(",") for line in lines] == [2, 2]


@pytest.mark.parametrize(("solved", "goal"), [(None, 6.0), (10.0, 9.0), (2.0, 3.0)])
def test_other_environments_have_a_goal_between_chance_and_solved(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, solved: float | None, goal: float
) -> None:
    """Any actions get 3 times 2; the goal is three quarters of the way from there."""
    monkeypatch.setitem(sys.modules, "gymnasium", FakeGymnasium(solved=solved))
    assert example.goal_of("CartPole", 0) == example.GOAL == 195
    assert example.goal_of("Three-v0", 0) == goal
    assert example.make_environment("Three-v0", 0).solved == solved


def test_other_environments_fail_below_their_goals(
    example: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["--environment=Three-v0", "--interactions=500"]
    monkeypatch.setitem(sys.modules, "gymnasium", FakeGymnasium())
    assert example.main(command) == 6.0
    assert "The goal: a mean return of 6.0 in 50 new episodes of Three-v0." in capsys.readouterr().out
    monkeypatch.setitem(sys.modules, "gymnasium", FakeGymnasium(solved=10.0))
    with pytest.raises(SystemExit, match=r"The goal, a mean return of 9.0, was missed: it is 6.0."):
        example.main(command)


@pytest.mark.slow
def test_it_reaches_its_goal(example: ModuleType) -> None:
    assert example.main([]) >= example.GOAL


def test_docstrings(example: ModuleType) -> None:
    assert doctest.testmod(example) == doctest.TestResults(failed=0, attempted=3)
