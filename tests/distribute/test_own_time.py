"""`OwnTime`, by which tests find out that processes stand still: it stops while one of them waits for a processor."""

from __future__ import annotations

import os

from shared.faults import OwnTime, seconds_in_queue


def test_time_in_which_a_process_waits_for_a_processor_does_not_count():
    clock, queued = [100.0], {1: 5.0, 2: 0.0}
    own = OwnTime(lambda: list(queued), lambda: clock[0], lambda pid: queued[pid])

    def pass_by(seconds: float, **waited: float) -> float:
        clock[0] += seconds
        for name, more in waited.items():
            queued[int(name[1:])] += more
        return own.now()

    assert pass_by(1.0) == 1.0
    assert pass_by(1.0, p1=0.25, p2=0.75) == 1.25, "the one that has waited longest"
    assert pass_by(1.0, p1=3.0) == 1.25, "several threads have waited"
    assert pass_by(0.25) == 1.25, "it is not looked at so often"
    assert pass_by(0.75) == 2.25
    assert pass_by(60.0) == 4.25, "the test itself did not run"
    queued[3] = 0.5  # it was started since
    assert pass_by(1.0) == 4.75


def test_the_seconds_of_this_process_grow_and_those_of_others_are_none():
    first = seconds_in_queue(os.getpid())
    assert 0.0 <= first <= seconds_in_queue(os.getpid())
    assert seconds_in_queue(2**30) == 0.0
