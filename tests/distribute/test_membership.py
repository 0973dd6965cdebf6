"""Who is in the group of workers after a loss, and who leads it: in simulations, and over sockets."""

from __future__ import annotations

import os

import pytest
from shared.membership_mutants import MUTANTS
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


def test_after_a_mistake_workers_may_be_silent_for_twice_as_long():
    """On a busy machine one worker after the other was declared lost."""
    service = begun(6)
    heard = {*range(6)}
    for silent, seconds in ((5, 10), (4, 20), (3, 40), (2, 80), (1, 80)):
        heard.discard(silent)
        while silent not in service.lost:
            for rank in heard:
                service.heard(rank)
            service.tick()
        assert service.lost[silent] == f"nothing was heard of it for {seconds} s"
        for _ in range(3):  # it counts once
            service.heard(silent)


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


def test_nobody_enters_a_group_that_has_gone_on_by_beginning():
    service = begun(2)
    service.gone(0)
    service.count(1, 1)
    service.begin(2)
    assert taken(service)[2] == [
        {"refused": "the group has gone on after a loss: who was started again joins it", "latest": 2}
    ]
    service.count(3, 2)
    assert taken(service)[3][0]["refused"] == "it is in no group"
    service.count(1, 1)
    assert taken(service)[1][0]["refused"] == "1 is not the number of the latest group, which is 2"


def admitted() -> Membership:
    """Return a service whose leader, worker 1, has just taken worker 0 in, which has not got the state so far."""
    service = begun(3)
    service.gone(0)
    service.count(1, 1)
    service.count(2, 1)
    service.join(0, 1)
    assert taken(service)[1] == [{"group": 2, "members": [1, 2]}, {"joins": True}]
    service.count(2, 2)
    service.count(1, 2, admits=True)
    assert taken(service) == {rank: [{"group": 3, "members": [1, 0, 2]}] for rank in (1, 0, 2)}
    return service


def test_who_was_started_again_joins_and_does_not_lead():
    service = admitted()
    service.take_part(0, 3)
    service.check(1, 3)
    service.check(0, 3)
    found = taken(service)
    assert found[1] == [{"leads": 3}]
    assert found[0][0] == {"takes part": 3}
    assert found[0][1]["refused"] == "worker 1 leads"
    service.gone(1)
    service.count(0, 3)
    service.count(2, 3)
    assert taken(service)[0] == [{"group": 4, "members": [0, 2]}], "the lowest of those that are left leads"


def test_who_has_not_got_the_state_does_not_count():
    service = admitted()
    service.gone(1)
    service.count(2, 3)
    assert taken(service) == {2: [{"group": 4, "members": [2]}]}
    service.take_part(0, 3)
    service.heard(0)
    assert taken(service) == {0: [{"asks again": 4}]}
    service.join(0, 1)
    assert taken(service) == {2: [{"joins": True}]}
    service.gone(2)
    assert taken(service)[0][0]["refused"] == "no worker is left that has the state of the training"


def test_the_offer_of_a_leader_that_is_lost_does_not_hold():
    service = begun(3)
    service.gone(2)
    service.join(2, 1)
    service.count(1, 1)
    service.count(0, 1, admits=True)
    assert {*taken(service)} == {0, 1, 2}
    service.gone(1)
    service.join(1, 1)
    service.take_part(2, 2)
    service.count(0, 2, admits=True)
    service.gone(0)
    service.count(2, 2)
    assert taken(service)[2][-2:] == [{"group": 3, "members": [2]}, {"joins": True}], "it has offered nothing"


def test_who_comes_to_a_training_that_is_over_gets_what_it_has_left():
    service = begun(2)
    service.gone(1)
    service.join(1, 2)
    service.count(0, 1)
    taken(service)
    service.end(0, 2, "history")
    assert not service.sent, "it waits for the next training"
    service.join(1, 1)
    assert taken(service) == {1: [{"over": 2, "note": "history"}]}
    service.heard(1)
    service.gone(1)
    service.begin(0, 2)
    service.join(1, 1)
    service.join(1, 2)
    found = taken(service)
    assert found == {0: [{"begun": 2}, {"joins": True}], 1: [{"over": 2, "note": "history"}]}
    service.end(0, 2, "second")
    assert taken(service) == {1: [{"over": 2, "note": "second"}]}


def test_an_error_ends_the_training_of_all():
    service = begun(3)
    service.gone(2)
    service.count(1, 1)
    assert service.goes_on_without([2])
    service.fail(0, 1, "worker 0 has ended the training: no more memory")
    assert taken(service) == {1: [{"failed": "worker 0 has ended the training: no more memory"}]}
    assert not service.goes_on_without([2])
    service.join(2, 1)
    assert taken(service) == {2: [{"failed": "worker 0 has ended the training: no more memory"}]}


@pytest.mark.parametrize("seed", range(300))
def test_whatever_happens_all_that_are_left_go_on(seed: int):
    MembershipSimulation(seed).run()


def test_simulations_have_workers_that_join():
    joined = 0
    for seed in range(60):
        simulation = MembershipSimulation(seed)
        simulation.run()
        joined += simulation.joined
    assert joined > 10


@pytest.mark.parametrize("mutant", MUTANTS)
def test_simulations_find_planted_mistakes(mutant: type[Membership]):
    def finds(seed: int) -> bool:
        try:
            MembershipSimulation(seed, mutant).run()
        except AssertionError:
            return True
        return False

    assert any(finds(seed) for seed in range(300))


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(SIMULATIONS // 1000))
def test_many_simulations(chunk: int):
    for seed in range(1000 * (chunk + 1), 1000 * (chunk + 2)):
        MembershipSimulation(seed).run()
