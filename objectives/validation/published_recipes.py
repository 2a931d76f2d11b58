"""How published disaggregated runs were started: the limits that decide where requests wait.

A points file names the mapping and the load of a row. Its recipe names how many requests a decode
rank may hold, and benchmarks of disaggregation ask for a little more than that: what is above it
waits before its first token, and outweighs all else in TTFT.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pydantic import NonNegativeInt, PositiveInt

from spaces.documents import Document, read_yaml, validated
from spaces.plan import EngineName, Router

FILE = Path(__file__).parent / "published_recipes.yaml"


class FamilyMatch(Document):
    """What a row must be for a family to count; what is left out may be anything.

    Lengths are nominal, in tokens; `prefill` is the layout of one prefill worker (`tep4`).
    """

    engine: EngineName
    chip: str
    model: str
    weights: str | None = None
    input_tokens: PositiveInt | None = None
    output_tokens: PositiveInt | None = None
    prefill: str | None = None


class Limits(Document):
    """Most tokens of a step and most requests of a rank.

    `worker_step_tokens` and `worker_seats` are those of a worker, which its data-parallel ranks
    share evenly.
    """

    step_tokens: PositiveInt | None = None
    worker_step_tokens: PositiveInt | None = None
    seats: PositiveInt | None = None
    worker_seats: PositiveInt | None = None

    def of_rank(self, ranks: int) -> Limits:
        """The limits of one of so many data-parallel ranks.

        >>> shared = Limits(worker_step_tokens=32768, worker_seats=16).of_rank(4)
        >>> shared.step_tokens, shared.seats
        (8192, 4)
        """
        tokens = self.worker_step_tokens and max(1, self.worker_step_tokens // ranks)
        seats = self.worker_seats and max(1, self.worker_seats // ranks)
        return Limits(step_tokens=self.step_tokens or tokens, seats=self.seats or seats)


class Recipe(Document):
    """One start of the decode workers (`2 dep8`), and what a rank of them may hold.

    `drafts` are those of a step, 0 for none; left out, a recipe counts with drafts and without.
    `prefill` are the limits of its prefill workers where they are not its family's.
    """

    decode: str | None = None
    drafts: NonNegativeInt | None = None
    seats: PositiveInt | None = None
    users: tuple[PositiveInt, ...] = ()
    prefill: Limits | None = None


class Family(Document):
    """Recipes of one engine, chip, model and length, whose prefill workers share
    limits where a recipe has none of its own.
    """

    match: FamilyMatch
    prefill: Limits = Limits()
    recipes: tuple[Recipe, ...]


class PublishedRecipes(Document):
    """Recipes for rows whose workload names `workload`, and the router of all of them.

    `stream_intervals` are the tokens that an engine's decode workers hand out together.
    """

    source: str
    checked: str
    workload: str
    router: Router
    stream_intervals: dict[EngineName, PositiveInt]
    families: tuple[Family, ...]


class Start(Document):
    """How a disaggregated row was started; None where no recipe tells."""

    router: Router = "least-loaded"
    stream_interval: PositiveInt = 1
    seats: PositiveInt | None = None
    drafts: PositiveInt | None = None
    prefill: Limits = Limits()


class Row(Document):
    """What recipes are told apart by: names are the catalogue's, `weights` as the row has them."""

    engine: EngineName
    chip: str
    model: str
    weights: str
    input_tokens: int
    output_tokens: int
    prefill: str
    decode: str
    drafts: bool
    users: int | None


@lru_cache(maxsize=1)
def published_recipes() -> PublishedRecipes:
    """The content of `published_recipes.yaml`."""
    return validated(PublishedRecipes, read_yaml(FILE), str(FILE))


def start_of(workload: str, row: Row) -> Start:
    """How the row was started by its recipe; defaults for other benchmarks."""
    known = published_recipes()
    if known.workload not in workload:
        return Start()
    interval = known.stream_intervals.get(row.engine, 1)
    for family in known.families:
        if not _concerns(family.match, row):
            continue
        for recipe in family.recipes:
            if _started_by(recipe, row):
                return Start(
                    router=known.router,
                    stream_interval=interval,
                    seats=recipe.seats,
                    drafts=recipe.drafts or None,
                    prefill=recipe.prefill or family.prefill,
                )
    return Start(router=known.router, stream_interval=interval)


def _concerns(match: FamilyMatch, row: Row) -> bool:
    wanted = match.model_dump(exclude_none=True)
    return all(getattr(row, key) == value for key, value in wanted.items())


def _started_by(recipe: Recipe, row: Row) -> bool:
    return (
        recipe.decode in (None, row.decode)
        and (recipe.drafts is None or (recipe.drafts > 0) == row.drafts)
        and (not recipe.users or row.users in recipe.users)
    )
