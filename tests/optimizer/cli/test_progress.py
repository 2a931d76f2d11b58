"""What a search says of itself where nobody looks at a terminal."""

from __future__ import annotations

import pytest

from optimizer.cli.progress import LINE_EVERY_S, Progress
from optimizer.problem import prepare
from optimizer.storing.records import StoredTrial, record_of
from spaces.draw import RandomDraw
from tests.optimizer.toy import evaluator, job_of

PROBLEM = prepare(job_of(constraints=[]))


def trial(number: int) -> StoredTrial:
    plan = PROBLEM.space.plan(RandomDraw(number))
    evaluation = evaluator(PROBLEM)(plan)
    return StoredTrial(record_of(number, plan, evaluation, None), evaluation)


class Clock:
    """A clock that a test sets."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr("optimizer.cli.progress.time", found)
    return found


def lines(
    clock: Clock, capsys: pytest.CaptureFixture[str], timeout_s: float | None = None
) -> list[str]:
    """Four trials of twenty, one every two seconds, after an earlier run of two."""
    trials = [trial(number) for number in range(40) if trial(number).record.feasible][:6]
    watch = Progress(20, PROBLEM.objectives, PROBLEM.constraints, timeout_s)
    with watch:
        watch.begin(trials[:2])
        for one in trials[2:]:
            clock.now_s += 2.0
            watch.told(one)
    return capsys.readouterr().err.splitlines()


def test_plain_lines_tell_trials_front_pace_and_end(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier, in_between, last = lines(clock, capsys)
    assert earlier == "going on with a study of 2 evaluations"
    assert in_between.startswith("5/20 evaluations, 5 feasible, ")
    assert last.startswith("6/20 evaluations, 6 feasible, ")
    assert " on the front, hypervolume " in last
    assert "20 simulated requests/s" in last  # 4 evaluations of 40 requests in 8 s
    assert last.endswith("about 28 s left")  # 14 more at 2 s each
    assert LINE_EVERY_S > 4.0, "so there is no line after the second trial"


def test_a_time_limit_may_be_the_sooner_end(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lines(clock, capsys, timeout_s=15.0)[-1].endswith("about 7 s left")


def test_a_study_that_is_done_has_nothing_left(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress(1, PROBLEM.objectives, PROBLEM.constraints) as watch:
        watch.begin([trial(0)])
    assert capsys.readouterr().err.splitlines()[-1].endswith(", nothing left to do")
