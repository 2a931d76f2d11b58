"""The search space's questions answered by an Optuna trial, by a known plan, or by counting."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Sequence
from typing import TypeVar

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

from spaces.branch import joint_word
from spaces.draw import at_position
from spaces.plan import DeploymentPlan, Pool
from spaces.space import SearchSpace

Option = TypeVar("Option")
Parameters = dict[str, float | str]

# What a space decides about a plan; the rest is given by the job.
_SEARCHED = (
    "topology",
    "engine",
    "precision",
    "speculation",
    "kv",
    "midfill_tokens",
    "ping_pong",
    "router",
    "hosts",
    "load",
)
_OF_A_POOL = {
    "chips_per_replica",
    "tp",
    "pp",
    "ep",
    "replicas",
    "max_num_seqs",
    "max_num_batched_tokens",
}
_OF_THE_JOB = {"hbm_fraction": None, "engine_version": None}  # in a pool
_POSITION = FloatDistribution(0.0, 1.0)
# Questions that a plan can be asked at most.
_DIMENSIONS = 64


class TrialDraw:
    """Answers by the sampler's suggestions.

    An ordered question is a position in [0, 1], whatever the options: its distribution never
    changes within a study, though the options may from call to call. An unordered one is a
    categorical over the options' words.

    A trial of an earlier run that was killed while it was asked keeps the answers it has. For
    those the sampler draws once more to no purpose, so that its later answers are the ones it
    would have given then.
    """

    def __init__(self, trial: optuna.Trial) -> None:
        self._trial = trial
        self._answered = set(trial.params)
        self._together = set(trial.relative_params)

    def ordered(self, name: str, options: Sequence[Option]) -> Option:
        """The option at the suggested position."""
        self._catch_up(name, _POSITION)
        return at_position(self._trial.suggest_float(name, 0.0, 1.0), options)

    def unordered(self, name: str, options: Sequence[Option]) -> Option:
        """The option whose word is suggested."""
        words = [str(option) for option in options]
        self._catch_up(name, CategoricalDistribution(words))
        return options[words.index(self._trial.suggest_categorical(name, words))]

    def _catch_up(self, name: str, distribution: BaseDistribution) -> None:
        if name in self._answered and name not in self._together:
            study = self._trial.study
            frozen = study.get_trials(deepcopy=False)[self._trial.number]
            study.sampler.sample_independent(study, frozen, name, distribution)


def parameters_of(plan: DeploymentPlan, space: SearchSpace) -> Parameters | None:
    """The trial parameters that make `space` give `plan`; None where the space lacks it.

    What is not searched, such as the memory share, is the space's own and may differ.
    """
    placed = place_of(plan, space)
    return None if placed is None else placed[1]


def place_of(plan: DeploymentPlan, space: SearchSpace) -> tuple[str, Parameters] | None:
    """The parameters of `parameters_of`, after the point id of the plan they give.

    It is the plan's own where what is not searched is the same too.
    """
    draw = _PlanDraw(plan)
    try:
        found = space.plan(draw)
    except _NotAnOption:
        return None
    same = all(getattr(found, part) == getattr(plan, part) for part in _SEARCHED)
    same = same and _searched_pools(found) == _searched_pools(plan)
    return (found.point_id, draw.parameters) if same else None


def _searched_pools(plan: DeploymentPlan) -> list[Pool]:
    return [pool.model_copy(update=_OF_THE_JOB) for pool in plan.pools]


def all_parameters(space: SearchSpace) -> Iterator[tuple[str, Parameters]]:
    """Every plan of the space as its point id and parameters, in a fixed order."""
    path: list[int] = []
    while True:
        draw = _CountingDraw(path)
        yield space.plan(draw).point_id, draw.parameters
        path = draw.next_path()
        if not path:
            return


def neighbour(
    parent: Parameters, space: SearchSpace, chance: random.Random
) -> tuple[str, Parameters]:
    """A plan with one or two of the parent's answers drawn anew, as point id and parameters.

    Questions that only the new answers raise are answered by chance.
    """
    count = min(len(parent), chance.choice((1, 1, 2)))
    anew = chance.sample(sorted(parent), count)
    kept = {name: answer for name, answer in parent.items() if name not in anew}
    return completed(kept, space, chance)


def completed(
    answers: Parameters, space: SearchSpace, chance: random.Random
) -> tuple[str, Parameters]:
    """The plan of these answers as point id and parameters.

    Answers to questions that are not raised are left out, questions without an answer are
    answered by chance.
    """
    draw = _MutatedDraw(answers, chance)
    return space.plan(draw).point_id, draw.parameters


def distributions_of(parameters: Parameters, space: SearchSpace) -> dict[str, BaseDistribution]:
    """What a sampler would have drawn the parameters of a plan of the space from."""
    draw = GivenDraw(parameters)
    space.plan(draw)
    return draw.distributions


def quasirandom(space: SearchSpace, seed: int, start: int, count: int) -> list[Parameters]:
    """The parameters of `count` points of a scrambled Sobol sequence, from number `start` on.

    Each question takes the next coordinate, so that points of a branch spread evenly over the
    answers to all its questions.
    """
    from scipy.stats import qmc  # here because its import takes half a second

    sequence = qmc.Sobol(_DIMENSIONS, scramble=True, rng=seed)
    if start:
        sequence.fast_forward(start)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The balance properties", UserWarning)
        points = sequence.random(count).tolist()
    draws = [_SobolDraw(point) for point in points]
    for draw in draws:
        space.plan(draw)
    return [draw.parameters for draw in draws]


class _NotAnOption(Exception):
    """The plan's own answer is not among the options."""


class _PlanDraw:
    """Answers as a given plan was answered, and keeps the parameters."""

    def __init__(self, plan: DeploymentPlan) -> None:
        self._plan = plan
        self.parameters: Parameters = {}

    def ordered(self, name: str, options: Sequence[Option]) -> Option:
        place = self._place(name, options)
        self.parameters[name] = _middle(place, len(options))
        return options[place]

    def unordered(self, name: str, options: Sequence[Option]) -> Option:
        place = self._place(name, options)
        self.parameters[name] = str(options[place])
        return options[place]

    def _place(self, name: str, options: Sequence[Option]) -> int:
        answer = _answer(self._plan, name)
        found = [place for place, option in enumerate(options) if _told(option) == answer]
        if not found:
            raise _NotAnOption(name)
        return found[0]


def _told(option: object) -> object:
    """An option as a plan tells it: of a batch (step, seats) the seats are asked for."""
    return option[1] if isinstance(option, tuple) else option


def _answer(plan: DeploymentPlan, name: str) -> object:
    """What the plan answers to a question of the search space."""
    role, _, setting = name.rpartition(".")
    pool = next((pool for pool in plan.pools if pool.role == role), None)
    if pool is not None and setting in _OF_A_POOL:
        return getattr(pool, setting)
    answers = {
        "topology": plan.topology,
        "engine": joint_word([plan.settings(pool).engine for pool in plan.pools]),
        "weights": plan.precision.weights,
        "kv": joint_word([plan.settings(pool).precision.kv for pool in plan.pools]),
        "drafts": str(plan.speculation.depth if plan.speculation else 0),
        "chips": "+".join(pool.chip for pool in plan.pools),
        **plan.kv.choices(),
        "midfill_threshold_tokens": plan.midfill_tokens,
        "micro_batches": plan.ping_pong,
        "router": plan.router,
        "max_queued_requests": plan.max_queued_requests,
        "when_full": plan.when_full,
        "hosts": plan.hosts,
        "load": plan.load,
    }
    if setting not in answers:
        raise _NotAnOption(name)  # a question about a pool that the plan lacks
    return answers[setting]


class _CountingDraw:
    """Answers by a path of places; beyond its end always by the first option."""

    def __init__(self, path: Sequence[int]) -> None:
        self._path = list(path)
        self._sizes: list[int] = []
        self.parameters: Parameters = {}

    def ordered(self, name: str, options: Sequence[Option]) -> Option:
        place = self._next(len(options))
        self.parameters[name] = _middle(place, len(options))
        return options[place]

    def unordered(self, name: str, options: Sequence[Option]) -> Option:
        place = self._next(len(options))
        self.parameters[name] = str(options[place])
        return options[place]

    def next_path(self) -> list[int]:
        """The path after this one, counted from its last place; empty after the last path."""
        path = self._path[: len(self._sizes)]
        while path and path[-1] + 1 == self._sizes[len(path) - 1]:
            path.pop()
        return [*path[:-1], path[-1] + 1] if path else []

    def _next(self, size: int) -> int:
        depth = len(self._sizes)
        self._sizes.append(size)
        if depth == len(self._path):
            self._path.append(0)
        return self._path[depth]


class GivenDraw:
    """Answers by given parameters, and keeps the distributions a sampler would have drawn from."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self.distributions: dict[str, BaseDistribution] = {}

    def ordered(self, name: str, options: Sequence[Option]) -> Option:
        """The option at the given position."""
        self.distributions[name] = _POSITION
        return at_position(float(self._parameters[name]), options)

    def unordered(self, name: str, options: Sequence[Option]) -> Option:
        """The option whose word is given."""
        words = [str(option) for option in options]
        self.distributions[name] = CategoricalDistribution(words)
        return options[words.index(str(self._parameters[name]))]


class _SobolDraw:
    """Answers by the coordinates of a point, each question by the next."""

    def __init__(self, coordinates: Sequence[float]) -> None:
        self._coordinates = iter(coordinates)
        self.parameters: Parameters = {}

    def ordered(self, name: str, options: Sequence[Option]) -> Option:
        position = next(self._coordinates)
        self.parameters[name] = position
        return at_position(position, options)

    def unordered(self, name: str, options: Sequence[Option]) -> Option:
        option = at_position(next(self._coordinates), options)
        self.parameters[name] = str(option)
        return option


class _MutatedDraw:
    """Answers as it was answered before where that is kept, and by chance elsewhere."""

    def __init__(self, kept: Parameters, chance: random.Random) -> None:
        self._kept = kept
        self._chance = chance
        self.parameters: Parameters = {}

    def ordered(self, name: str, options: Sequence[Option]) -> Option:
        position = self._kept.get(name, self._chance.random())
        assert isinstance(position, float), "an ordered question has a position"
        self.parameters[name] = position
        return at_position(position, options)

    def unordered(self, name: str, options: Sequence[Option]) -> Option:
        words = [str(option) for option in options]
        word = self._kept.get(name, self._chance.choice(words))
        self.parameters[name] = word
        return options[words.index(str(word))]


def _middle(place: int, size: int) -> float:
    """The position in the middle of an option's share."""
    return (place + 0.5) / size
