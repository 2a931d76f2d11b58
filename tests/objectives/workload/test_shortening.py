"""A short run is of the same kind as the whole one, or there is none."""

from __future__ import annotations

import numpy as np
import pytest

from objectives.workload import LoadRules, Workload, shortened
from objectives.workload.offering import NO_RULES
from objectives.workload.presets import workload_of
from objectives.workload.workload import broken_law
from spaces.plan import Load


@pytest.fixture(scope="module")
def sessions() -> Workload:
    return workload_of("chat", 2000)


def test_a_closed_loop_keeps_whole_sessions_from_the_first_one_on(sessions: Workload) -> None:
    short = shortened(sessions, Load(concurrency=4), NO_RULES, 0.1)
    assert short is not None
    kept = short[0]
    assert broken_law(kept) is None
    turns, whole = np.bincount(kept.session), np.bincount(sessions.session)
    assert (turns == whole[: len(turns)]).all()
    assert 200 <= len(kept) < 200 + whole.max()


def test_an_open_loop_keeps_the_first_requests(sessions: Workload) -> None:
    short = shortened(sessions, Load(request_rate=2.0), NO_RULES, 0.1)
    assert short is not None
    assert len(short[0]) == 200
    assert (short[0].input_tokens == sessions.input_tokens[:200]).all()
    assert short[1] == NO_RULES


def test_each_user_has_two_sessions_and_a_run_that_is_then_no_shorter_is_none(
    sessions: Workload,
) -> None:
    users = sessions.sessions // 5
    short = shortened(sessions, Load(concurrency=users), NO_RULES, 0.01)
    assert short is not None and short[0].sessions == 2 * users
    assert shortened(sessions, Load(concurrency=sessions.sessions // 3), NO_RULES, 0.01) is None


def test_warm_up_keeps_its_length_and_what_is_measured_is_shortened(sessions: Workload) -> None:
    timed = LoadRules(recycle=True, duration_s=1000, warm_up_s=200)
    short = shortened(sessions, Load(concurrency=100), timed, 0.1)
    assert short is not None
    assert short[0] is sessions
    assert (short[1].warm_up_s, short[1].duration_s) == (200, 280)
    counted = LoadRules(requests=1000, warm_up_requests=100)
    short = shortened(sessions, Load(concurrency=4), counted, 0.1)
    assert short is not None and short[1].requests == 190
    assert shortened(sessions, Load(concurrency=400), counted, 0.1) is None
    mostly_warm_up = LoadRules(duration_s=1000, warm_up_s=600)
    assert shortened(sessions, Load(concurrency=4), mostly_warm_up, 0.1) is None
