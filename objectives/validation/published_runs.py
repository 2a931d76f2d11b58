"""How published serving points were run: engine flags that change what is measured.

A points file names the mapping and the load of a row, not the flags of the engine. Those of
InferenceX are public, and some decide TTFT more than any kernel does: how often the scheduler
looks at its queue, whether ranks wait for one another, how many tokens a prefill step may hold.
"""

from __future__ import annotations

import re
from datetime import date
from functools import lru_cache
from pathlib import Path

from pydantic import Field, PositiveFloat, PositiveInt

from spaces.documents import Document, read_yaml, validated
from spaces.model.drafts import acceptance_rates
from spaces.plan import EngineName
from spaces.precision import KvDtype

FILE = Path(__file__).parent / "published_runs.yaml"
_IMAGE = re.compile(r"(?:sglang|vllm|tensorrt-llm|atom)\D*(\d+\.\d+\.\d+)")


class Match(Document):
    """What a row must be for a setting to count; what is left out may be anything."""

    engine: EngineName
    chip: str | None = None
    model: str | None = None
    weights: str | None = None
    tp: int | None = None
    attention_dp: bool | None = None
    drafts: bool | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class RunSetting(Document):
    """Flags of a run.

    `step_tokens` bounds the tokens of a step, or `inputs_a_step` times the nominal input does;
    with `one_input_a_step` it is one input and what all decoding requests have. `drafts` are those
    of a step where a row says that it drafts. Tokens go to the client `stream_interval` at a time.
    With `one_attention_rank` the script shares attention among all chips by tensor parallelism,
    whatever data parallelism a row states.
    `admission_steps` maps the least concurrency to the steps between two looks at the queue, and
    `admission_together` lets ranks wait for one another (`objectives.simulator.admission`).
    """

    match: Match
    step_tokens: PositiveInt | None = None
    inputs_a_step: PositiveInt | None = None
    one_input_a_step: bool = False
    drafts: PositiveInt | None = None
    hbm_fraction: float | None = None
    kv: KvDtype | None = None
    admission_steps: dict[int, PositiveInt] = Field(default_factory=dict)
    admission_together: bool = False
    stream_interval: PositiveInt = 1
    one_attention_rank: bool = False

    def step_tokens_at(self, nominal_input: int, decoding: int, drafts: int) -> int | None:
        """Most tokens of a step of a rank with so many decoding requests, None if nothing is said.

        `max_num_tokens` of InferenceX's scripts for TensorRT-LLM is rounded down to 64 tokens.

        >>> built = RunSetting(match=Match(engine="trtllm"), one_input_a_step=True)
        >>> built.step_tokens_at(1024, 32, 3)
        1216
        """
        if self.one_input_a_step:
            return ((1 + drafts) * decoding + nominal_input + 64 + 63) // 64 * 64
        return self.step_tokens or (self.inputs_a_step or 0) * nominal_input or None

    def admission_steps_at(self, concurrency: int) -> int:
        """Steps between two looks at the queue, 1 where nothing is said.

        >>> setting = RunSetting(match=Match(engine="sglang"), admission_steps={1: 10, 16: 30})
        >>> [setting.admission_steps_at(c) for c in (1, 15, 16, 64)]
        [10, 10, 30, 30]
        """
        reached = [least for least in self.admission_steps if least <= concurrency]
        return self.admission_steps[max(reached)] if reached else 1


class Conversations(Document):
    """A benchmark of so many users in turn, each of whose prompts is their history and a question.

    Counts for rows whose workload names `workload`.
    """

    source: str
    workload: str
    users: PositiveInt
    question_tokens: PositiveInt


class Accepted(Document):
    """Mean tokens of a decode step by the number of drafts, as the runs of a model show them."""

    source: str
    model: str
    lengths: tuple[PositiveFloat, ...]


class RecordedLengths(Document):
    """How lengths of recorded conversations spread: the mean of each tenth, over that of all."""

    source: str
    input: tuple[PositiveFloat, ...]
    output: tuple[PositiveFloat, ...]


class Client(Document):
    """A benchmark of its own, for rows whose workload names it.

    A `clocked` one sends at even intervals; `hbm_fraction` and `kv` are what its engines are
    started with.
    """

    source: str
    workload: str
    clocked: bool = False
    hbm_fraction: float | None = None
    kv: KvDtype | None = None


class PublishedRuns(Document):
    """Settings by kind of row, for rows whose workload names `workload`.

    `conversations` and `clients` are benchmarks of their own, told by their own names.
    `accepted` is for drafting rows, `recorded_lengths` for those of recorded conversations.
    `releases` has the first day of each release of an engine in nightly runs.
    """

    source: str
    checked: str
    workload: str
    requests_per_user: PositiveInt
    accepted: tuple[Accepted, ...]
    recorded_lengths: RecordedLengths
    clients: tuple[Client, ...]
    conversations: tuple[Conversations, ...]
    releases: dict[EngineName, dict[date, str]]
    settings: tuple[RunSetting, ...]


@lru_cache(maxsize=1)
def published_runs() -> PublishedRuns:
    """The content of `published_runs.yaml`."""
    return validated(PublishedRuns, read_yaml(FILE), str(FILE))


def accepted_rates(workload: str, model: str, drafts: int) -> tuple[float, ...] | None:
    """Share of steps in which each draft was accepted, None where the runs do not show it."""
    runs = published_runs()
    told = next((a.lengths for a in runs.accepted if a.model == model), ())
    if runs.workload not in workload or len(told) < drafts:
        return None
    return acceptance_rates(told)


def client_of(workload: str) -> Client | None:
    """The benchmark that a row's workload names, if it is one of `clients`."""
    return next((c for c in published_runs().clients if c.workload in workload), None)


def release_of(image: str, engine: str, day: str) -> str:
    """The engine's release that an image names, else the one of the day (ISO), else nothing.

    >>> release_of("lmsysorg/sglang:v0.5.9-rocm700-mi30x", "sglang", "")
    '0.5.9'
    >>> release_of("", "sglang", "2026-01-31")
    '0.5.7'
    """
    if found := _IMAGE.search(image):
        return found.group(1)
    known = {str(first): name for first, name in _releases(engine).items()}
    reached = [first for first in known if first <= day[:10]]
    return known[max(reached)] if reached else ""


def _releases(engine: str) -> dict[date, str]:
    by_engine = {str(name): releases for name, releases in published_runs().releases.items()}
    return by_engine.get(engine, {})


def run_setting(
    workload: str,
    *,
    engine: EngineName,
    chip: str,
    model: str,
    weights: str,
    tp: int,
    attention_dp: bool,
    drafts: bool,
    input_tokens: int,
    output_tokens: int,
) -> RunSetting:
    """The first setting that matches a row; defaults where none does.

    Names are the catalogue's, `weights` as the row states them (`fp4`, `fp8`), lengths nominal.
    """
    asked = {
        "engine": engine,
        "chip": chip,
        "model": model,
        "weights": weights,
        "tp": tp,
        "attention_dp": attention_dp,
        "drafts": drafts,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
    }
    runs = published_runs()
    if runs.workload in workload:
        for setting in runs.settings:
            wanted = setting.match.model_dump(exclude_none=True)
            if all(asked[key] == value for key, value in wanted.items()):
                return setting
    client = client_of(workload)
    if client is None:
        return RunSetting(match=Match(engine=engine))
    return RunSetting(match=Match(engine=engine), hbm_fraction=client.hbm_fraction, kv=client.kv)
