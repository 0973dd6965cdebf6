"""Who is in the group of workers after a loss, and who leads it: in simulations, and over sockets."""

from __future__ import annotations

import os

import pytest
from shared.membership_simulation import MembershipSimulation

from anabranch.distribute.collectives.membership import SILENT_TICKS, Membership, Message

SIMULATIONS = int(os.environ.get("ANABRANCH_SIMULATIONS", "10000"))  # of the slow tests; `make sweep` asks for more


def begun(count: int) -> Membership:
    found = Membership()
    for rank in range(count):
        found.begin(rank)
    assert taken(found) == {rank: [{"begun": 1}] for rank in range(count)}
    return found


def taken(service: Membership) -> dict[int, list[Message]]:
    """Return what is to be sent, by rank."""
    found: dict[int, list[Message]] = {}
    for rank, message in service.sent:
        found.setdefault(rank, []).append(message)
    service.sent.clear()
    return found


def test_the_next_group_has_all_that_are_left_and_a_larger_number():
    service = begun(3)
    service.gone(0)
    service.count(2, 1)
    assert not service.sent, "worker 1 is there, and may be at a step"
    service.count(1, 1)
    assert taken(service) == {rank: [{"group": 2, "members": [1, 2]}] for rank in (1, 2)}
    service.check(1, 2)
    service.check(2, 2)
    found = taken(service)
    assert found[1] == [{"leads": 2}]
    assert found[2][0]["refused"] == "worker 1 leads"


def test_who_was_declared_lost_is_refused_whatever_it_asks():
    service = begun(2)
    for _ in range(SILENT_TICKS):
        service.heard(1)
        service.tick()
    found = taken(service)
    assert found[1] == [{"lost": 0, "why": "nothing was heard of it for 10 s"}]
    assert "refused" in found[0][0]
    service.count(1, 1)
    assert taken(service) == {1: [{"group": 2, "members": [1]}]}
    for ask in (lambda: service.count(0, 1), lambda: service.check(0, 1), lambda: service.begin(0)):
        ask()
        ((answer,),) = taken(service).values()
        assert answer == {"refused": "nothing was heard of it for 10 s", "latest": 2}


def test_nobody_is_lost_by_silence_where_all_are_silent_or_no_training_is_under_way():
    service = begun(2)
    for _ in range(3 * SILENT_TICKS):
        service.tick()
    assert not service.lost
    service.heard(0)
    service.heard(1)
    service.end(0, 1)
    for _ in range(3 * SILENT_TICKS):
        service.heard(1)
        service.tick()
    assert not service.lost


def test_a_training_that_has_ended_for_one_is_over_for_all():
    service = begun(3)
    service.gone(2)
    service.count(1, 1)
    service.end(0, 1)
    assert taken(service) == {1: [{"over": 1}]}
    service.begin(0)
    service.begin(1)
    assert taken(service) == {rank: [{"begun": 1}] for rank in (0, 1)}, "the next training"


def test_nobody_joins_a_group_that_has_gone_on():
    service = begun(2)
    service.gone(0)
    service.count(1, 1)
    service.begin(2)
    assert taken(service)[2] == [{"refused": "the group has gone on after a loss, and nobody can join it", "latest": 2}]
    service.count(3, 2)
    assert taken(service)[3][0]["refused"] == "it is in no group"
    service.count(1, 1)
    assert taken(service)[1][0]["refused"] == "1 is not the number of the latest group, which is 2"


@pytest.mark.parametrize("seed", range(200))
def test_whatever_happens_all_that_are_left_go_on(seed: int):
    MembershipSimulation(seed).run()


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(SIMULATIONS // 1000))
def test_many_simulations(chunk: int):
    for seed in range(1000 * (chunk + 1), 1000 * (chunk + 2)):
        MembershipSimulation(seed).run()
