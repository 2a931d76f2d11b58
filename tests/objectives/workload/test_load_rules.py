"""Loads with rules: closed loops over sessions, processes of arrivals, stops and warm-up."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from objectives.workload.arrivals import Arrivals
from objectives.workload.offering import NO_RULES, LoadRules, agentx, offered, offers
from objectives.workload.presets import workload_of
from objectives.workload.workload import broken_law
from spaces.documents import validated
from spaces.errors import InputError
from spaces.plan import Load, LoadAxis
from tests.objectives.workload.forests import forest

CHAT = workload_of("chat", 600, seed=1)


def times(process: dict[str, Any] | str, rate: float, n: int = 40_000) -> np.ndarray:
    arrivals = Arrivals.model_validate(process)
    return arrivals.times(np.random.default_rng(5), n, rate)


@pytest.mark.parametrize(
    ("process", "cv"),
    [
        ("constant", 0.0),
        ("poisson", 1.0),
        ({"gamma": {"cv": 3}}, 3.0),
        # Gaps of a Weibull distribution of shape k: cv^2 = G(1 + 2/k) / G(1 + 1/k)^2 - 1.
        ({"weibull": {"shape": 0.5}}, math.sqrt(5.0)),
    ],
)
def test_processes_have_their_rate_and_burstiness(process: Any, cv: float) -> None:
    found = times(process, rate=4.0)
    gaps = np.diff(found)
    assert found[0] == 0
    assert 1 / gaps.mean() == pytest.approx(4.0, rel=0.06)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.06, abs=1e-9)


def test_a_modulated_process_has_its_mean_rate_and_the_rates_of_its_states() -> None:
    process = {"markov_modulated": {"rates": [1, 10], "mean_s": [300, 30]}}
    found = times(process, rate=5.0, n=100_000)
    assert len(found) / found[-1] == pytest.approx(5.0, rel=0.1)
    # Mean relative rate (300 + 300) / 330; the states have 2.75 and 27.5 arrivals a second.
    counts = np.bincount(found.astype(int))
    assert counts.var() / counts.mean() > 5
    assert np.percentile(counts, 50) == pytest.approx(2.75, abs=1)
    assert np.percentile(counts, 98) == pytest.approx(30, abs=5)


def test_a_curve_is_followed_again_and_again() -> None:
    found = times({"curve": {"rates": [1, 0, 3], "step_s": 100}}, rate=2.0)
    place = (found + 1e-9) % 300 // 100
    shares = np.bincount(place.astype(int), minlength=3) / len(found)
    assert shares == pytest.approx([0.25, 0.0, 0.75], abs=0.03)
    assert len(found) / found[-1] == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize(
    "process",
    [
        {"markov_modulated": {"rates": [1, 2], "mean_s": [5]}},
        {"markov_modulated": {"rates": [0, 0], "mean_s": [5, 5]}},
        {"curve": {"rates": [0], "step_s": 5}},
        {"weibull": {"shape": 0}},
        {"poisson": {}, "constant": {}},
    ],
)
def test_wrong_processes_are_refused(process: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        validated(Arrivals, process, "test")


def test_an_open_loop_moves_whole_sessions() -> None:
    rules = LoadRules(arrivals=Arrivals.model_validate("poisson"))
    sent, load = offered(CHAT, Load(session_rate=2.0), rules)
    assert broken_law(sent) is None
    assert load.concurrency == 0
    roots = sent.arrival_s[sent.parent < 0]
    assert len(roots) / roots[-1] == pytest.approx(2.0, rel=0.15)
    later = np.flatnonzero(sent.parent >= 0)
    waits = sent.arrival_s[later] - sent.arrival_s[sent.parent[later]]
    old = np.flatnonzero(CHAT.parent >= 0)
    assert sorted(waits.tolist()) == pytest.approx(
        sorted((CHAT.arrival_s[old] - CHAT.arrival_s[CHAT.parent[old]]).tolist())
    )


def test_without_a_process_the_recorded_starts_are_stretched() -> None:
    sent, _ = offered(CHAT, Load(session_rate=4.0))
    roots = sent.arrival_s[sent.parent < 0]
    recorded = CHAT.arrival_s[CHAT.parent < 0]
    assert (len(roots) - 1) / roots[-1] == pytest.approx(4.0)
    assert roots / roots[-1] == pytest.approx(recorded / recorded[-1])


def test_recorded_times_are_scaled_and_replayed() -> None:
    sent, load = offered(forest(), Load(time_scale=0.5), LoadRules(replay_turns=True))
    assert sent.arrival_s.tolist() == (forest().arrival_s / 2).tolist()
    assert (sent.parent == -1).all()
    assert load.arrival_s.tolist() == sent.arrival_s.tolist()


def test_a_closed_loop_plays_whole_sessions_in_order() -> None:
    sent, load = offered(forest(), Load(concurrency=2), LoadRules(recycle=True, requests=7))
    assert broken_law(sent) is None
    assert load.concurrency == 2
    assert load.measured.all()
    assert sent.session.tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert sent.input_tokens.tolist() == [100, 140, 200, 50, 260, 300, 120]
    assert sent.gap_s.tolist() == [0, 1.5, 2, 0, 2.5, 0, 7]


def test_sessions_are_played_again_with_prefixes_of_their_own() -> None:
    sent, _ = offered(forest(), Load(concurrency=1), LoadRules(recycle=True, requests=14))
    assert broken_law(sent) is None
    assert len(sent) == 14
    assert sent.input_tokens[:7].tolist() == sent.input_tokens[7:].tolist()
    first = set(sent.block_ids[: sent.block_offsets[7]].tolist())
    again = set(sent.block_ids[sent.block_offsets[7] :].tolist())
    assert not first & again


def test_agentx_begins_inside_the_first_sessions_and_follows_its_rules() -> None:
    agents = workload_of("agentic-coding", 3000, seed=1)
    sent, load = offered(agents, Load(concurrency=12), agentx(), seed=3)
    assert broken_law(sent) is None
    assert (load.concurrency, load.system_idle_cap_s, load.horizon_s) == (12, 10, 3600)
    assert sent.gap_s.max() <= 300
    turns = np.bincount(agents.session)
    played = np.bincount(sent.session)
    # A session that has k turns begins at one in [k / 4, 3 k / 4], after one turn of warm-up.
    begun = turns[:12] - played[:12] + 1
    assert (
        begun[played[:12] < turns[:12]] >= np.floor(turns[:12] / 4)[played[:12] < turns[:12]]
    ).all()
    assert (begun <= 0.75 * turns[:12] + 1).all()
    assert played[12:20].tolist() == turns[12:20].tolist()
    warm_up = np.flatnonzero(~load.measured)
    assert set(sent.session[warm_up].tolist()) <= set(range(12))
    assert (sent.parent[warm_up] == -1).all()
    assert len(warm_up) == len(set(sent.session[warm_up].tolist()))


def test_runs_stop_after_requests_or_time_and_leave_warm_up_out() -> None:
    rules = LoadRules(requests=100, duration_s=50, warm_up_requests=7, warm_up_s=3)
    sent, load = offered(CHAT, Load(time_scale=1), rules)
    assert len(sent) == len(load.arrival_s) == 100
    assert (load.horizon_s, load.warm_up_s) == (50, 3)
    assert load.measured.tolist() == [False] * 7 + [True] * 93


def test_the_same_seed_offers_the_same_load() -> None:
    five, rules = Load(concurrency=5), agentx()
    one, other = offered(CHAT, five, rules, seed=2), offered(CHAT, five, rules, seed=2)
    assert np.array_equal(one[0].input_tokens, other[0].input_tokens)
    third = offered(CHAT, five, rules, seed=3)
    assert not np.array_equal(one[1].measured, third[1].measured)


@pytest.mark.parametrize(
    ("rules", "key"),
    [
        ({"start": [0.3, 0.2]}, "start"),
        ({"start": [0.3, 1.2]}, "start.1"),
        ({"recycle": True}, "recycle"),
        ({"duration_s": 0}, "duration_s"),
        ({"duration_s": 5, "warm_up_s": 5}, "warm_up_s"),
        ({"requests": 5, "warm_up_requests": 5}, "warm_up_requests"),
    ],
)
def test_wrong_rules_are_refused(rules: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError) as caught:
        validated(LoadRules, rules, "test")
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("axis", "rules", "key"),
    [
        ("concurrency", {"arrivals": "poisson"}, "arrivals"),
        ("concurrency", {"replay_turns": True}, "replay_turns"),
        ("time_scale", {"arrivals": "poisson"}, "arrivals"),
        ("session_rate", {"start": [0.1, 0.2]}, "start"),
        ("request_rate", {"recycle": True, "duration_s": 60}, "recycle"),
        ("session_rate", {"system_idle_cap_s": 10}, "system_idle_cap_s"),
        (None, {"arrivals": "poisson"}, "arrivals"),
    ],
)
def test_rules_of_another_kind_of_load_are_refused(
    axis: LoadAxis | None, rules: dict[str, Any], key: str
) -> None:
    with pytest.raises(InputError) as caught:
        validated(LoadRules, rules, "test").check(axis)
    assert caught.value.key == key


def test_a_rate_of_sessions_that_begin_at_once_is_refused() -> None:
    rules = LoadRules(recycle=True, requests=7)
    agents, _ = offered(forest(), Load(concurrency=1), rules)
    with pytest.raises(InputError, match="recorded starts"):
        offered(agents, Load(session_rate=1))


def test_a_process_gives_the_requests_their_rate_whatever_their_sessions() -> None:
    rules = LoadRules(arrivals=Arrivals.model_validate({"gamma": {"cv": 2}}))
    sent, _ = offered(CHAT, Load(request_rate=3.0), rules)
    begins = sent.arrival_s[sent.parent < 0]
    expected = 3.0 * CHAT.sessions / len(CHAT)
    assert len(begins) / begins[-1] == pytest.approx(expected, rel=0.25)


def test_sessions_are_played_until_the_time_has_passed() -> None:
    rules = LoadRules(recycle=True, duration_s=100)
    more = offers(forest(), Load(concurrency=2), rules, 1)
    sizes = [len(next(more)[0]) for _ in range(4)]
    assert sizes == sorted(set(sizes))
    assert sizes[-1] >= 8 * len(forest())
    assert len(list(offers(forest(), Load(concurrency=2), NO_RULES, 1))) == 1
