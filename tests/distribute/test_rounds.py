"""Rounds of several hosts: which take part, and what follows from failures, without sockets and in virtual time."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from anabranch.distribute.commands.rounds import GRACE_SECONDS, LEAVE_SECONDS, Counts, Rounds
from anabranch.distribute.restarts import Restarts


class Goes:
    """A membership service of workers that train together; of none where no training is under way."""

    def __init__(self, *live: int) -> None:
        self.live = [*live]
        self.expected: set[int] = set()

    def goes_on_without(self, ranks: Collection[int]) -> bool:
        return any(rank not in ranks for rank in self.live)

    def expects(self, rank: int) -> bool:
        return rank in self.expected

    def expect(self, rank: int) -> None:
        self.expected.add(rank)

    def leader(self) -> int | None:
        return self.live[0] if self.live else None


class Told:
    """Hosts that say what they do, and the messages that they get, in virtual time."""

    def __init__(self, least: int, most: int, restarts: int = 0, service: Goes | None = None) -> None:
        self.now = 0.0
        clock = self._clock
        self.has_ps = service is None  # only workers without ps tasks have a membership service
        self.rounds = Rounds(Counts(least, most, 5.0, 100.0), Restarts(restarts, clock), clock, lambda: service)

    def _clock(self) -> float:
        return self.now

    def come(self, *hosts: int) -> Told:
        for host in hosts:
            ps = [f"p{host}"] if self.has_ps else []
            self.rounds.ready(host, [f"w{host}a", f"w{host}b"], ps, leads=host == 0)
        return self

    def later(self, seconds: float) -> Told:
        self.now += seconds
        self.rounds.look()
        return self

    @property
    def sent(self) -> list[tuple[int, str]]:
        """The numbers of the hosts that got messages since, each with the first word of its message."""
        found = [(host, next(iter(message))) for host, message in self.rounds.sent]
        self.rounds.sent.clear()
        return found


def test_a_round_begins_when_as_many_hosts_as_may_are_there() -> None:
    told = Told(1, 3)
    assert told.come(2, 1).later(6.0).sent == [], "the first host is not there"
    told.come(0)
    messages = dict(told.rounds.sent)
    assert [*messages] == [0, 2, 1], "the first host has worker 0"
    assert messages[1]["cluster"] == {
        "worker": ["w0a", "w0b", "w2a", "w2b", "w1a", "w1b"],
        "ps": ["p0", "p2", "p1"],
    }
    assert [messages[host]["first"] for host in (0, 2, 1)] == [
        {"ps": 0, "worker": 0},
        {"ps": 1, "worker": 2},
        {"ps": 2, "worker": 4},
    ]


def test_a_round_waits_a_while_for_more_than_the_least() -> None:
    told = Told(2, 3)
    assert told.come(0).later(50.0).come(1).later(4.0).sent == []
    assert told.later(1.0).sent == [(0, "start"), (1, "start")]


def test_too_few_hosts_end_the_run() -> None:
    told = Told(2, 2).come(0).later(99.0)
    assert told.sent == []
    assert told.later(1.0).sent == [(0, "exit")]
    assert told.rounds.status == 1


def test_a_late_host_takes_part_in_a_new_round() -> None:
    told = Told(1, 2).come(0).later(5.0)
    assert told.sent == [(0, "start")]
    told.come(1)
    assert told.sent == [(0, "stop")]
    assert told.come(0).sent == [(0, "start"), (1, "start")]
    told.come(2)
    assert told.sent == [], "there are as many as may be: it waits"
    told.rounds.left(1)
    assert told.sent == [(0, "stop")]
    assert told.come(0).sent == [(0, "start"), (2, "start")]


def test_a_host_that_leaves_is_no_failure_of_others() -> None:
    """Their processes fail because of it, and that does not count as a restart."""
    told = Told(1, 2, restarts=0).come(0, 1)
    assert told.sent == [(0, "start"), (1, "start")]
    told.rounds.failed(0, 1, "worker 0", 1)
    told.later(GRACE_SECONDS / 2)
    told.rounds.left(1)
    assert told.sent == [(0, "stop")]
    assert told.come(0).later(5.0).sent == [(0, "start")]
    told.rounds.failed(0, 1, "worker 0", 1)  # what it says of the round before
    assert told.later(10.0).sent == []


def test_a_host_that_is_shut_down_uses_up_no_restarts() -> None:
    """Its processes end before it is gone, and workers of other hosts fail because of its ps task."""
    told = Told(1, 2, restarts=2).come(0, 1).later(5.0)
    assert len(told.sent) == 2
    for host, name, status in ((1, "ps 1", -15), (1, "worker 2", -15), (0, "worker 1", 1), (1, "worker 3", -15)):
        told.rounds.failed(host, 1, name, status)
    assert told.later(GRACE_SECONDS / 2).sent == []
    told.rounds.left(1)
    assert told.sent == [(0, "stop")]
    assert told.come(0).later(5.0).sent == [(0, "start")]
    for again in (1, 2):
        told.rounds.failed(0, 2, "worker 1", 1)
        told.later(GRACE_SECONDS)
        assert told.rounds.sent[0][1]["why"].endswith(f"(restart {again} of 2)"), "both restarts were left"
        told.rounds.sent.clear()
    told = Told(1, 2, restarts=2, service=Goes(0, 1, 2, 3)).come(0, 1).later(5.0)
    told.rounds.failed(1, 1, "worker 3", -15)
    told.rounds.left(1)
    told.rounds.sent.clear()
    told.rounds.failed(0, 1, "worker 1", -9)
    told.later(GRACE_SECONDS)
    assert [message["again"] for _, message in told.rounds.sent] == ["worker 1"], "without ps tasks it is the same"
    assert "(restart 1 of 2)" in told.rounds.sent[0][1]["why"]


def test_a_host_that_says_that_it_leaves_is_waited_for() -> None:
    """Its processes may take longer to end than the grace."""
    told = Told(1, 2, restarts=1, service=Goes(0, 1, 2, 3)).come(0, 1).later(5.0)
    assert told.sent == [(0, "start"), (1, "start")]
    told.rounds.leaves(1)
    told.rounds.failed(0, 1, "worker 1", 1)
    assert told.later(0.9 * LEAVE_SECONDS).sent == []
    told.rounds.left(1)
    assert (0, "again") in told.sent, "nobody else is waited for"


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_host_that_says_that_it_leaves_is_not_waited_for_without_end(restarts: int) -> None:
    """Its connection may never end: the network is gone before it."""
    told = Told(1, 2, restarts=restarts, service=Goes(0, 1, 2, 3)).come(0, 1).later(5.0)
    told.rounds.leaves(1)
    told.rounds.failed(0, 1, "worker 0", 1)
    told.sent.clear()
    told.later(0.9 * LEAVE_SECONDS)
    assert told.rounds.status is None
    told.later(0.1 * LEAVE_SECONDS)
    if restarts:
        assert (0, "again") in told.sent
    else:
        assert told.sent[-1:] == [(0, "exit")]
        assert told.rounds.status == 1


def test_a_round_does_not_wait_for_hosts_that_left_before_it() -> None:
    told = Told(1, 3, restarts=1, service=Goes()).come(0, 1).later(5.0)
    told.rounds.leaves(1)
    told.come(2)
    assert (0, "stop") in told.sent
    assert told.come(0).later(5.0).sent == [(0, "start"), (2, "start")]


def test_failures_of_ps_tasks_wait_for_no_host_that_leaves() -> None:
    """Host 1 has no ps task."""
    told = Told(1, 2, restarts=2).come(0)
    told.rounds.ready(1, ["w1a"], [])
    told.later(5.0).sent.clear()
    told.rounds.leaves(1)
    told.rounds.failed(0, 1, "worker 1", 1)
    told.rounds.failed(0, 1, "ps 0", -9)
    told.later(GRACE_SECONDS)
    assert [message["again"] for _, message in told.rounds.sent if "again" in message] == ["ps 0"]


def test_a_host_that_leaves_with_ps_tasks_is_gone_at_once() -> None:
    told = Told(1, 2, restarts=0).come(0, 1).later(5.0)
    assert told.sent == [(0, "start"), (1, "start")]
    told.rounds.leaves(1)
    assert told.sent == [(0, "stop")]
    assert told.come(0).later(5.0).sent == [(0, "start")]
    told.rounds.left(1)
    assert told.later(10.0).sent == []


def test_a_host_that_leaves_before_the_round_takes_no_part_in_it() -> None:
    told = Told(1, 2).come(0, 1, 2)
    told.rounds.leaves(1)
    assert told.later(5.0).sent[:1] == [(0, "start")]
    told = Told(1, 3).come(0, 1)
    told.rounds.leaves(1)
    assert told.later(5.0).sent == [(0, "start")]


def test_the_end_of_a_host_counts_once_it_is_decided_that_nothing_is_started_again() -> None:
    """Its message comes while its failures wait for the end of the grace."""
    told = Told(2, 2, restarts=1).come(0, 1)
    told.rounds.failed(1, 1, "worker 2", -9)
    told.rounds.failed(1, 1, "worker 3", -9)
    told.rounds.ended(1, 1, [2, 3])
    told.later(GRACE_SECONDS)
    assert [host for host, message in told.rounds.sent if "again" in message] == [1]
    told.rounds.ended(1, 1, [3])
    told.rounds.ended(0, 1)
    assert told.rounds.status == 0


def test_a_host_that_has_ended_goes_with_ps_tasks_that_others_need() -> None:
    told = Told(1, 2, restarts=1).come(0, 1)
    assert len(told.sent) == 2
    told.rounds.ended(1, 1)
    told.rounds.left(1)
    assert told.sent == [(0, "stop")], "the workers that are left would fail, again and again"
    for has_ended in (True, False):  # if not, its workers are lost
        told = Told(1, 2, restarts=1).come(0, 1)
        told.rounds.ended_well(0, 1, 0)
        if has_ended:
            told.rounds.ended(1, 1)
        told.rounds.sent.clear()
        told.rounds.left(1)
        assert "stop" not in dict(told.sent).values(), "the chief has ended well: nobody needs ps tasks any more"
        told.rounds.ended(0, 1)
        assert told.rounds.status == 0


def test_failures_of_the_chief_have_all_start_again() -> None:
    told = Told(2, 2, restarts=1).come(0, 1)
    assert len(told.sent) == 2
    told.rounds.failed(0, 1, "worker 0", 3)
    assert told.later(GRACE_SECONDS).sent == [(0, "stop"), (1, "stop")]
    assert told.come(1, 0).sent == [(0, "start"), (1, "start")]
    told.rounds.failed(0, 2, "worker 0", 3)
    assert told.later(GRACE_SECONDS).sent == [(0, "exit"), (1, "exit")]
    assert told.rounds.status == 3


def test_with_ps_tasks_what_fails_is_started_again_alone() -> None:
    """As on one host: also a chief that was killed, for which another worker takes over."""
    told = Told(2, 2, restarts=3).come(0, 1)
    assert len(told.sent) == 2
    told.rounds.failed(0, 1, "worker 0", -9)
    told.rounds.failed(1, 1, "ps 1", -9)
    told.later(GRACE_SECONDS)
    assert [(host, message["again"]) for host, message in told.rounds.sent] == [(0, "worker 0"), (1, "ps 1")]
    told.rounds.sent.clear()
    told.rounds.leads(1, 1, 2)
    told.rounds.leads(0, 1, 2)
    assert told.rounds.sent == [(host, {"chief": 2}) for host in (0, 1, 0)], "who reports it gets it back"
    told.rounds.failed(0, 1, "worker 0", 3)
    told.later(GRACE_SECONDS)
    assert told.rounds.sent[3:] == [
        (0, {"again": "worker 0", "why": "worker 0 ended with exit status 3; it is started again (restart 3 of 3)"})
    ], "it is not the chief any more"
    told.rounds.sent.clear()
    told.rounds.failed(1, 1, "worker 2", 3)
    assert told.later(GRACE_SECONDS).sent == [(0, "exit"), (1, "exit")], "the chief has failed, and no restart is left"
    assert told.rounds.status == 3


def test_without_restarts_a_worker_that_fails_ends_nobody() -> None:
    """It ended the run on all hosts, also outside of training, where on one host the others go on."""
    for service in (None, Goes()):
        told = Told(2, 2, service=service).come(0, 1)
        assert len(told.sent) == 2
        told.rounds.failed(1, 1, "worker 3", 3)
        assert told.rounds.sent == [
            *[(host, {"workers ended": [3]}) for host in (0, 1)],
            (1, {"say": "worker 3 ended with exit status 3; the others go on"}),
        ]
        assert told.later(10 * GRACE_SECONDS).rounds.status is None
        told.rounds.ended_well(1, 1, 2)
        assert told.rounds.sent[3:] == [(host, {"workers ended": [2, 3]}) for host in (0, 1)]
        told.rounds.ended(1, 1, [3])
        told.rounds.ended(0, 1)
        assert told.rounds.status == 0, "that of the chief"


@pytest.mark.parametrize("is_killed", [False, True])
def test_without_restarts_the_first_failure_gives_the_status_if_the_chief_fails(is_killed: bool) -> None:
    told = Told(2, 2, service=Goes()).come(0, 1)
    assert len(told.sent) == 2
    told.rounds.failed(1, 1, "worker 3", 3)
    if is_killed:  # another worker might take over
        told.rounds.failed(0, 1, "worker 0", -9)
        told.rounds.ended(0, 1, [0])
        told.rounds.ended(1, 1, [3])
        assert told.rounds.status == 3
    else:
        told.rounds.failed(0, 1, "worker 0", 1)
        assert told.later(GRACE_SECONDS).rounds.status == 3


def test_nobody_goes_on_after_the_last_worker() -> None:
    """One worker in all has a membership service, too, but no others: the end of the run says what has failed."""
    told = Told(1, 1, service=Goes())
    told.rounds.ready(0, ["w0"], [], leads=True)
    told.rounds.sent.clear()
    told.rounds.failed(0, 1, "worker 0", -9)
    told.rounds.ended(0, 1, [0])
    told.later(GRACE_SECONDS)
    assert not any("say" in message for _, message in told.rounds.sent)
    assert told.rounds.sent[-1] == (0, {"exit": 137, "why": "worker 0 ended with exit status -9 (SIGKILL)"})
    told = Told(1, 1, service=Goes()).come(0)
    told.rounds.failed(0, 1, "worker 1", -9)
    told.rounds.failed(0, 1, "worker 0", -15)
    said = [message["say"] for _, message in told.rounds.sent if "say" in message]
    assert said == [
        "worker 1 ended with exit status -9 (SIGKILL); the others go on",
        "worker 0 ended with exit status -15 (SIGTERM)",
    ]


def test_once_the_chief_has_ended_well_no_worker_is_started_again() -> None:
    told = Told(2, 2, restarts=3, service=Goes()).come(0, 1)
    assert len(told.sent) == 2
    told.rounds.ended_well(0, 1, 0)
    told.rounds.failed(1, 1, "worker 3", 3)
    told.rounds.ended(1, 1, [3])
    told.rounds.ended(0, 1)
    assert told.rounds.status == 0
    told = Told(2, 2, restarts=3).come(0, 1)
    told.rounds.ended_well(0, 1, 0)
    told.rounds.sent.clear()
    told.rounds.failed(1, 1, "ps 1", 1)
    assert told.sent == [], "nobody needs a ps task any more"
    told.rounds.failed(1, 1, "worker 3", -9)
    assert told.later(GRACE_SECONDS).sent == [(1, "again")], "as on one host"


def test_a_run_ends_when_all_workers_have() -> None:
    told = Told(2, 3, service=Goes()).come(0, 1).later(5.0)
    assert len(told.sent) == 2
    told.rounds.ended(1, 1)
    told.come(2)
    assert told.sent == [], "a host that comes when some have ended changes nothing"
    told.rounds.left(1)
    assert told.sent == [], "nor does one that has ended and goes"
    told.rounds.ended(0, 1)
    assert told.sent == [(0, "exit"), (2, "exit")]
    assert told.rounds.status == 0


def test_a_worker_that_others_go_on_without_is_started_alone() -> None:
    told = Told(2, 2, restarts=1, service=Goes(0, 1, 2, 3)).come(0, 1)
    assert len(told.sent) == 2
    told.rounds.failed(1, 1, "worker 3", -9)
    told.rounds.ended(1, 1, [3])
    told.later(GRACE_SECONDS)
    again = "worker 3 ended with exit status -9 (SIGKILL); it is started again (restart 1 of 1)"
    assert told.rounds.sent == [(1, {"again": "worker 3", "why": again})]
    told.rounds.sent.clear()
    told.rounds.ended(0, 1)
    assert told.later(10.0).sent == [], "what host 1 has said of its end was before"
    told.rounds.ended(1, 1)
    assert told.sent == [(0, "exit"), (1, "exit")]
    assert told.rounds.status == 0


def test_without_restarts_the_others_go_on_and_the_last_leader_gives_the_status() -> None:
    service = Goes(0, 1, 2, 3)
    told = Told(2, 2, service=service).come(0, 1)
    assert len(told.sent) == 2
    told.rounds.failed(0, 1, "worker 0", -9)
    assert told.rounds.sent[2:] == [(0, {"say": "worker 0 ended with exit status -9 (SIGKILL); the others go on"})]
    service.live = [1, 2, 3]
    told.rounds.sent.clear()
    told.rounds.ended(0, 1, [0])
    told.rounds.ended(1, 1)
    assert told.sent == [(0, "exit"), (1, "exit")]
    assert told.rounds.status == 0


def test_who_fails_by_itself_before_it_has_joined_has_all_start_again() -> None:
    told = Told(2, 2, restarts=2, service=Goes(0, 1, 2, 3)).come(0, 1)
    assert len(told.sent) == 2
    told.rounds.failed(1, 1, "worker 3", -9)
    assert told.later(GRACE_SECONDS).sent == [(1, "again")]
    told.rounds.failed(1, 1, "worker 3", 1)
    assert told.later(GRACE_SECONDS).sent == [(0, "stop"), (1, "stop")]


def test_workers_go_on_without_another_host_as_long_as_enough_are_left() -> None:
    told = Told(1, 2, service=Goes(0, 1, 2, 3)).come(0, 1)
    assert len(told.sent) == 2
    told.rounds.left(1)
    assert told.rounds.sent == [(0, {"workers ended": [2, 3]}), (0, {"say": "host 1 is gone; the others go on"})]
    told.rounds.sent.clear()
    told.rounds.ended(0, 1)
    assert told.sent == [(0, "exit")]
    assert told.rounds.status == 0
    told = Told(2, 2, service=Goes(0, 1, 2, 3)).come(0, 1)
    assert len(told.sent) == 2
    told.rounds.left(1)
    assert told.sent == [(0, "stop")]
