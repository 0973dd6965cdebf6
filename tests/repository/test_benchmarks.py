"""The benchmarks' plan and report: every row exists, other work is reported, first losses are the peers'."""

from __future__ import annotations

import dataclasses
import importlib
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the benchmarks as their worker processes do."""
    for folder in (BENCHMARKS, BENCHMARKS / "peers", BENCHMARKS / "workloads"):
        monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module


@pytest.fixture
def line(load: Any) -> Any:
    """A line of two rows of ours and two peers."""
    plan, goals = load("plan"), load("goals")
    return plan.Line(
        "W0",
        "work",
        {"B": 1},
        "peer",
        "ours",
        {"anabranch": goals.at_most(0.5)},
        ("quick", "small"),
        losses=(1.0, 0.5, 0.25),
    )


def record(median: float, peak: int = 100, losses: tuple[float, ...] = (1.0, 0.5, 0.25)) -> dict[str, Any]:
    """Return what a process reports about one row."""
    return {"median_ms": median, "peak_rss_mb": peak, "compile_or_first_step_s": 1.0, "loss_check": list(losses)}


def summary(load: Any, line: Any, **rows: dict[str, Any]) -> Any:
    """The summary of one process a row."""
    return load("table").summarise(load("harness").Measured(line, {name: [row] for name, row in rows.items()}))


def test_every_row_of_the_plan_exists(load: Any) -> None:
    missing: list[str] = []
    for line in load("plan").LINES:
        ours = load(line.our_module).OURS
        missing += [f"{line.title}: {row}" for row in line.goals if row not in ours]
        peers = load(line.peer_module).PEERS if line.peers or line.floors else {}
        missing += [f"{line.title}: {row}" for row in (*line.peers, *line.floors) if row not in peers]
    assert missing == []


def test_all_workloads_are_run(load: Any) -> None:
    assert {f"W{number}" for number in range(1, 30)} <= set(load("plan").workloads())


def test_titles_tell_lines_apart(load: Any) -> None:
    titles = [(line.title, line.what) for line in load("plan").LINES]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize(
    "losses",
    [(1.0, 0.5, 0.2501), (1.0, 0.5), (), (1.0, 0.5, float("nan"))],
    ids=["another third loss", "too few", "none", "not a number"],
)
def test_ours_that_does_other_work_is_told(load: Any, line: Any, losses: tuple[float, ...]) -> None:
    found = summary(load, line, anabranch=record(1.0, losses=losses), quick=record(2.0))
    assert [remark for remark in found.remarks if remark.startswith("anabranch does not do the same work")]


def test_ours_that_does_the_same_work_is_not_told(load: Any, line: Any) -> None:
    found = summary(load, line, anabranch=record(1.0, losses=(1.000001, 0.5, 0.25)), quick=record(2.0))
    assert found.remarks == ()


def test_a_peer_that_does_other_work_is_told(load: Any, line: Any) -> None:
    found = summary(load, line, anabranch=record(1.0), quick=record(2.0, losses=(1.1, 0.5, 0.25)))
    assert [remark for remark in found.remarks if remark.startswith("quick does not do the same work")]


def test_a_run_goes_on_after_the_lines_that_it_kept(
    load: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: Any
) -> None:
    harness, kept = load("harness"), tmp_path / "lines.json"
    other = dataclasses.replace(line, what="other work")
    ran: list[str] = []

    def measure_row(line: Any, row: str, *_arguments: Any, first_only: bool = False) -> Any:
        if line is other and not can_run_other:
            raise KeyboardInterrupt
        ran.append(f"{line.what} {row}{' first' if first_only else ''}")
        return (None, "no memory") if row == "small" else (record(len(ran)), "")

    def run(rounds: int = 1) -> Any:
        interpreters = harness.Interpreters(Path("python"), Path("python"))
        return harness.measure((line, other), interpreters, harness.Settings(rounds=rounds), lambda *_: None, kept)

    monkeypatch.setattr(harness, "measure_row", measure_row)
    can_run_other = False
    with pytest.raises(KeyboardInterrupt):
        run()
    with kept.open("a", encoding="utf-8") as file:
        file.write('{"line": "W0 B=1: other')  # cut off while it was written
    can_run_other = True
    first, second = run()
    assert ran == [
        f"{what} {row}"
        for what in ("work", "other work")
        for row in ("anabranch", "quick", "small", "anabranch first", "anabranch first")
    ]
    assert first.records == {"anabranch": [record(1)], "quick": [record(2)]}
    assert first.failures == {"small": "no memory"}
    assert run() == [first, second]
    with pytest.raises(SystemExit, match=r"'W0 B=1: work' as measured with .*'rounds': 1.*'rounds': 2"):
        run(rounds=2)
    assert first.first_steps["anabranch"] == harness.FirstSteps(cold=[1.0], warm=[1.0])


def test_time_is_held_against_the_fastest_peer(load: Any, line: Any) -> None:
    found = summary(load, line, anabranch=record(1.1), quick=record(2.0, peak=300), small=record(4.0, peak=100))
    assert found.best.name == "quick"
    assert (found.verdicts["anabranch"].figure, found.verdicts["anabranch"].met) == ("0.55 x", False)


def test_memory_is_held_against_the_smallest_peer(load: Any, line: Any) -> None:
    by_memory = dataclasses.replace(line, measure="memory")
    rows = {"anabranch": record(9.0, peak=50), "quick": record(2.0, peak=300), "small": record(4.0, peak=100)}
    found = summary(load, by_memory, **rows)
    assert found.best.name == "small"
    assert (found.verdicts["anabranch"].figure, found.verdicts["anabranch"].met) == ("0.50 x", True)
    assert next(iter(load("table").goal_cells(found)))[:5] == ["W0 B=1", "anabranch", "50.0 MB", "small", "100.0 MB"]


def test_parts_are_held_against_the_peer_that_is_best_at_each(load: Any, line: Any) -> None:
    rows = {
        "anabranch": record(1.0) | {"parts_us": {"x * y": 3.0, "tanh(x)": 2.0}},
        "quick": record(2.0) | {"parts_us": {"x * y": 1.5, "tanh(x)": 4.0}},
        "small": record(2.0) | {"parts_us": {"x * y": 6.0, "tanh(x)": 2.5}},
    }
    table, found = load("table"), summary(load, line, **rows)
    assert list(table.part_cells(found)) == [
        ["W0 B=1", "anabranch", "x * y", "3", "quick", "1.5", "2.00"],
        ["W0 B=1", "anabranch", "tanh(x)", "2", "small", "2.5", "0.80"],
    ]
    assert "## Parts of lines" in table.document([found], {}, False)
    assert "tanh(x)" in table.terminal_text([found])
    without = summary(load, line, anabranch=record(1.0), quick=record(2.0))
    assert "Parts of lines" not in table.document([without], {}, False)


@pytest.mark.parametrize(
    ("cold", "warm", "step", "met"),
    [
        (2.9, 0.6, 0.01, True),
        (3.1, 0.6, 0.01, False),
        (2.9, 0.8, 0.01, False),
        (2.9, 1.4, 0.8, True),
        (2.9, 1.6, 0.8, False),
        (6.5, 4.5, 4.0, True),
        (7.1, 4.5, 4.0, False),
    ],
)
def test_first_steps_are_held_against_what_preparing_may_take(
    load: Any, cold: float, warm: float, step: float, met: bool
) -> None:
    assert load("table").Start("anabranch", cold, warm, step).met is met


def test_seconds_are_held_against_the_clock_alone(load: Any) -> None:
    goals = load("goals")
    short = goals.at_most_milliseconds(0.4)
    assert short.judge(goals.Figures(0.3694, None, {})) == goals.Verdict("0.369 ms", True)
    assert not short.judge(goals.Figures(0.41, 2000.0, {})).met
    goal = goals.at_most_seconds(0.8)
    assert goal.judge(goals.Figures(790.0, None, {})) == goals.Verdict("0.79 s", True)
    assert not goal.judge(goals.Figures(810.0, 2000.0, {})).met


@pytest.mark.parametrize(
    "title",
    [
        "W2",
        "W16 softmax=sampled",
        "W21",
        "W24",
        "W25",
        "W28",
        "W29 of=factor N=400",
        "W29 of=gradient N=400",
        "W30 of=soft_dtw",
        "W30 of=heat",
        *[
            pytest.param(title, marks=pytest.mark.slow)
            for title in ("W10", "W12", "W13", "W14", "W20", "W22", "W23", "W27")
        ],
    ],
)
def test_the_first_loss_is_the_peers(load: Any, monkeypatch: pytest.MonkeyPatch, title: str) -> None:
    monkeypatch.setattr(load("common"), "FIRST_ONLY", True)
    planned = next(each for each in load("plan").LINES if f"{each.title} ".startswith(f"{title} "))
    found = load(planned.our_module).OURS["anabranch"](dict(planned.params))
    assert found["loss_check"] == [pytest.approx(planned.losses[0], rel=load("table").LOSS_TOLERANCE)]


def test_the_words_that_peers_sample_follow_the_law_of_our_sampler(load: Any) -> None:
    peer = load("w16_softmax")
    words = np.arange(peer.V)
    assert peer.probability(words).sum() == pytest.approx(1)
    counts = np.bincount(peer.draw(np.random.default_rng(0), 100_000), minlength=peer.V)[:9]
    np.testing.assert_allclose(counts / 100_000, peer.probability(words[:9]), rtol=0.05)
    sampled, tries = peer.sample(np.random.default_rng(0))
    assert len(np.unique(sampled)) == peer.S < tries
    assert sampled.max() < peer.V


@pytest.mark.parametrize(
    ("name", "count"),
    [("AlexNet", 61_100_840), ("Overfeat", 145_920_872), ("OxfordNet", 132_863_336), ("GoogleNet", 6_998_552)],
)
def test_the_convnets_have_as_many_weights_as_the_published_ones(load: Any, name: str, count: int) -> None:
    assert sum(prod(shape) + shape[-1] for shape in load("w15_convnets").kernels(name)) == count


def test_our_convnet_has_the_peers_weights_in_their_order(load: Any) -> None:
    shapes = [shape for kernel in load("w15_convnets").kernels("GoogleNet") for shape in (kernel, kernel[-1:])]
    assert [weight.shape for weight in load("w15").build("GoogleNet").weights] == shapes


def test_costs_of_simulated_loops(load: Any) -> None:
    """A task has the condition for each other one, and at a barrier two values besides."""
    loops = load("cluster_loops")

    def spent(turn: float, for_another: float) -> dict[int, Any]:
        return {count: loops.Measured(1.0, [turn + (count - 1) * for_another]) for count in (2, 8)}

    measured = {"free": spent(5.0, 1.0), "barrier": spent(10.0, 7.0)}
    found = {(kind, count): each for kind, counts in measured.items() for count, each in counts.items()}
    np.testing.assert_allclose(loops.costs_of(found, "free", 0.5), (5.0, 1.0, 0.5, 1.0))
    np.testing.assert_allclose(loops.costs_of(found, "barrier", 0.5), (10.0, 3.0, 0.5, 1.0))


def test_simulated_loops(load: Any) -> None:
    """Iterations take what their parts add up to; tasks of a chain compute at once as far as the window lets them."""
    loops = load("cluster_loops")
    costs = loops.Costs(turn=1e-5, message=1e-6, latency=1e-4, condition=1e-6)
    np.testing.assert_allclose(loops.simulated_rate(1, False, costs), 1e5)
    np.testing.assert_allclose(loops.simulated_rate(64, False, costs), 1 / (1e-5 + 63e-6), 0.02)
    assert loops.simulated_rate(8, True, costs) < 1 / (2e-4 + 7e-6)  # there and back, behind 7 messages
    assert loops.simulated_rate(64, True, costs) < 1 / (4e-4 + 28e-6)  # by way of the first of each group
    alone = costs._replace(turn=0.0, latency=0.0, condition=0.0)
    groups = loops.simulated_rate(64, True, alone)
    assert 28 < 1e6 / groups < 28 + 28  # task 0 has two messages with 14 others, and waits for one that has 16
    assert 126 < 1e6 / loops.simulated_rate(64, True, alone, group=64) < 126 + 3
    free = loops.Costs(0.0, 0.0, 0.0, 0.0)
    for window, expected in ((1, 8), (4, 2), (8, 1), (32, 1)):  # kernels' times for an iteration
        np.testing.assert_allclose(loops.simulated_chain(8, 0.5, free, window, 400) / 200, expected, 0.03)
    np.testing.assert_allclose(loops.simulated_lstm(1, free), 200 * 8 * 5.75e-3)
    assert 7 < loops.simulated_lstm(1, free) / loops.simulated_lstm(8, free) < 8


def test_simulated_softmax(load: Any) -> None:
    """A worker alone takes what its parts add up to; a second ps task helps more than more workers (figure 9)."""
    model = load("cluster_softmax")
    rate, megabyte = model.words_a_second, 512 * 4 * 512 / 1.25e9  # of rows, by a card
    parts = 2 * 3 * 512**2 * 40_000 / 1e12 + 6 * 512 * 1024 * 2048 / 1e12 + 2 * megabyte * 4
    np.testing.assert_allclose(512 / rate("full", 1, 1), parts)
    assert rate("full", 4, 2) / rate("full", 4, 1) > 1.5 > rate("full", 32, 1) / rate("full", 4, 1)
    assert rate("sampled", 4, 1) > 10 * rate("full", 4, 1)


def test_sections_of_the_page_of_clusters(load: Any) -> None:
    written = load("cluster").written
    page = written("# Head\n", "## One (figure 1)\n\nold")
    page = written(page, "## Two\n\nnew")
    assert (
        written(page, "## One (figures 1 and 2)\n\nnew")
        == "# Head\n\n## One (figures 1 and 2)\n\nnew\n\n## Two\n\nnew\n"
    )


def test_what_is_written_of_small_steps_follows_the_figures(load: Any) -> None:
    small_steps = load("cluster").small_steps
    quick, slow = (" ".join(small_steps({"scalar": 7.1, "sparse": sparse}).split()) for sparse in (18.2, 38.0))
    assert "take 7 ms (below the paper's 8.8) and 18 ms (below the paper's 20)" in quick
    assert "Fewer messages" not in quick
    assert "38 ms (above the paper's 20)" in slow
    assert "Fewer messages would help" in slow


def test_simulated_null_steps(load: Any) -> None:
    null = load("cluster_null")
    for pieces, seconds in ((1, 0.4), (4, 0.25)):  # of five parts of the time one reads, three do both, and one writes
        step = null.NullStep(null.NullCosts(0.0, 0.0, 0.0, 0.0), 1, 2, 1e8, pieces, 1e9, 0.0)
        np.testing.assert_allclose(step.seconds(), seconds)
    costs = null.NullCosts(run=0.01, begin=0.02, value=0.1, own=0.03)
    expected = 0.005 + 0.02 + 0.05 + 0.03 + 0.05 + 2 * 0.005  # one waits for the other
    np.testing.assert_allclose(null.NullStep(costs, 1, 1, 0.0, 1, 1e9, 0.0).seconds(), expected)


def test_simulated_clusters(load: Any) -> None:
    """Steps take what their parts add up to; a backup makes up for a worker that is slow now and then."""
    model = load("cluster_model")
    costs = model.Costs(link=1e9, card=1e9, latency=0.0, parameters=1e8, gradients=5e7, apply=0.1)
    steps = model.Training(6, 2, 0, lambda rng: 0.5, costs).run()
    np.testing.assert_allclose(steps, 0.2 + 0.5 + 0.1 + 0.1)  # both workers share the link, both ways
    alone = model.Training(6, 1, 0, lambda rng: 0.5, costs._replace(card=1e8)).run()
    np.testing.assert_allclose(alone, 1.0 + 0.5 + 0.5 + 0.1)  # by the worker's own card
    even = costs._replace(gradients=1e8, apply=0.0)
    for pieces, seconds in ((1, 1.0), (4, 0.7)):  # a part is read before, and one is sent behind what is computed
        steps = model.Training(6, 2, 0, lambda rng: 0.6, even._replace(pieces=pieces)).run()
        np.testing.assert_allclose(steps, seconds)
    busy = model.Training(6, 2, 0, lambda rng: 0.6, even._replace(put=0.01, reduce=0.02, update=0.03)).run()
    np.testing.assert_allclose(busy, 1.0 + 2 * 0.01 + 2 * 0.02 + 0.03)

    def slow(rng: Any) -> float:
        return 5.0 if rng.random() < 0.1 else 0.5

    quick = costs._replace(parameters=1e6, gradients=1e6, apply=0.01)
    late = [np.mean(model.Training(40, 5 + backups, backups, slow, quick).run()) for backups in (0, 2)]
    assert late[1] < 0.7 * late[0]
    own = model.Training(20, 3, 0, lambda rng: 0.5, costs, False).run()
    assert len(own) == 20
    assert min(own) >= 0.5 + 0.1 + 0.05
