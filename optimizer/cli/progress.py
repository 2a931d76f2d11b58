"""How far a search is: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from objectives.goals import Constraint, Objective
from optimizer.cli.talk import say
from optimizer.storing.records import StoredTrial
from results.front import pareto_front
from results.trials import TrialRecord
from results.words import format_value

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

LINE_EVERY_S = 5.0
FRONT_EVERY_S = 1.0


class Progress:
    """Looks on a search and says how far it is, on stderr.

    It ends after `budget` evaluations, or `timeout_s` seconds where that is sooner.
    """

    def __init__(
        self,
        budget: int,
        objectives: Sequence[Objective],
        constraints: Sequence[Constraint],
        timeout_s: float | None = None,
    ) -> None:
        self._budget = budget
        self._timeout_s = math.inf if timeout_s is None else timeout_s
        self._objectives = objectives
        self._constraints = constraints
        self._records: list[TrialRecord] = []
        self._earlier = self._requests = self._unique = self._feasible = self._pruned = 0
        self._started = self._last_line = time.monotonic()
        self._front_at = -FRONT_EVERY_S
        self._front = ""
        self._bar = _bar(budget) if sys.stderr.isatty() else None

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._records:
            say(self._line())

    def begin(self, trials: Sequence[StoredTrial]) -> None:
        """Count the trials of earlier runs."""
        self._records = [trial.record for trial in trials]
        self._unique = self._earlier = sum(_is_whole(record) for record in self._records)
        self._pruned = sum(r.state == "pruned" and r.same_as is None for r in self._records)
        self._feasible = sum(r.feasible and r.same_as is None for r in self._records)
        if self._earlier:
            say(f"going on with a study of {self._earlier} evaluations")
        self._requests = 0
        self._started = self._last_line = time.monotonic()

    def told(self, trial: StoredTrial) -> None:
        """Count a trial, and say something if it is time to."""
        self._records.append(trial.record)
        self._requests += trial.evaluation.simulated_requests
        self._requests += trial.short.simulated_requests if trial.short is not None else 0
        new = trial.record.same_as is None
        self._unique += _is_whole(trial.record)
        self._pruned += new and trial.record.state == "pruned"
        self._feasible += new and trial.record.feasible
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self._unique, state=self._state())
        elif time.monotonic() - self._last_line >= LINE_EVERY_S:
            self._last_line = time.monotonic()
            say(self._line())

    def note(self, text: str) -> None:
        """Say what happened."""
        say(f"note: {text}")

    def _line(self) -> str:
        return f"{self._unique}/{self._budget} evaluations, {self._state()}, {self._ends()}"

    def _state(self) -> str:
        now = time.monotonic()
        if now - self._front_at >= FRONT_EVERY_S:
            self._front_at, self._front = now, self._front_words()
        rate = self._requests / max(now - self._started, 1e-9)
        rate_words = f"{format_value(round(rate))} simulated requests/s"
        pruned = f"{self._pruned} pruned, " if self._pruned else ""
        return f"{self._feasible} feasible, {pruned}{self._front}, {rate_words}"

    def _front_words(self) -> str:
        front = pareto_front(self._records, self._objectives, constraints=self._constraints)
        volume = format_value(front.hypervolume)
        return f"{len(front.points)} on the front, hypervolume {volume}"

    def _ends(self) -> str:
        """How long it still takes, at the pace of this run."""
        done = self._unique - self._earlier
        if not done:
            return "no pace yet" if self._unique < self._budget else "nothing left to do"
        elapsed_s = time.monotonic() - self._started
        left_s = elapsed_s / done * max(self._budget - self._unique, 0)
        return f"about {min(left_s, max(self._timeout_s - elapsed_s, 0)):.0f} s left"


def _is_whole(record: TrialRecord) -> bool:
    """Whether a trial counts in the budget: a point for the first time, not only screened."""
    return record.same_as is None and record.state != "pruned"


def _bar(budget: int) -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(),
    )
    bar = Bar(*columns, console=Console(stderr=True))
    bar.add_task("search", total=budget, state="compiling the simulator and evaluating the first")
    return bar
