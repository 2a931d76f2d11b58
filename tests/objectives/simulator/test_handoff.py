"""KV sent to the decode pool while its prompt is computed: what hides, and what does not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from objectives.simulator import KvOnLink, Scenario, simulate
from objectives.simulator.records import RequestRecords
from objectives.workload.load import OfferedLoad
from tests.objectives.simulator.test_laws import pool
from tests.objectives.simulator.worlds import World, workload_of, worlds

TOKEN_BYTES = 1e5
LATENCY_S = 0.002


def lone(
    send_layers: int, bytes_per_s: float, prompt: int = 2000, chunk: int = 512
) -> RequestRecords:
    """A prompt that has both pools to itself."""
    pools = tuple(
        pool(role=role, step_tokens=chunk, link_bytes_per_s=bytes_per_s)
        for role in ("prefill", "decode")
    )
    on_link = KvOnLink(TOKEN_BYTES, request_bytes=3e6, latency_s=LATENCY_S)
    scenario = Scenario(pools, kv_on_link=on_link, send_layers=send_layers)
    workload = workload_of([0.0], [prompt], [4])
    return simulate(scenario, workload, OfferedLoad(np.zeros(1), 1)).requests


@given(st.floats(1e8, 1e12), st.integers(2, 90), st.integers(1, 4000))
@settings(max_examples=40, deadline=None)
def test_parts_are_no_slower_than_the_whole_and_no_faster_than_compute_or_wire(
    bytes_per_s: float, layers: int, prompt: int
) -> None:
    whole, chunks, by_layer = (lone(parts, bytes_per_s, prompt) for parts in (0, 1, layers))
    wire_s = (prompt * TOKEN_BYTES + 3e6) / bytes_per_s
    compute_s = float(whole.prefill_s[0])
    for way in (chunks, by_layer):
        assert way.prefill_s[0] == pytest.approx(compute_s, rel=1e-12)
        assert way.ttft_s[0] <= whole.ttft_s[0] * (1 + 1e-9)
        assert way.ttft_s[0] >= max(compute_s, wire_s) + LATENCY_S - 1e-9
    assert by_layer.ttft_s[0] <= chunks.ttft_s[0] * (1 + 1e-9)
    assert whole.ttft_s[0] == pytest.approx(compute_s + wire_s + LATENCY_S, rel=1e-9)


@given(st.floats(1e9, 1e12), st.integers(2, 90))
@settings(max_examples=30, deadline=None)
def test_of_one_chunk_all_but_a_layer_hides(bytes_per_s: float, layers: int) -> None:
    whole, by_layer = (lone(parts, bytes_per_s, 500) for parts in (0, layers))
    compute_s, wire_s = float(whole.prefill_s[0]), (500 * TOKEN_BYTES + 3e6) / bytes_per_s
    expected_s = max(compute_s + wire_s / layers, compute_s / layers + wire_s)
    assert by_layer.ttft_s[0] == pytest.approx(expected_s + LATENCY_S, rel=1e-9)


def test_a_chunked_prompt_sends_chunk_by_chunk() -> None:
    """Over a fast link only the last chunk, of 464 tokens, comes after the end of the prompt."""
    chunks = lone(1, 1e10)
    last_s = ((2000 - 3 * 512) * TOKEN_BYTES + 3e6) / 1e10
    assert chunks.transfer_s[0] == pytest.approx(last_s + LATENCY_S, rel=1e-6)
    one = lone(1, 1e10, chunk=2000)
    assert one.transfer_s[0] == pytest.approx(lone(0, 1e10, chunk=2000).transfer_s[0], rel=1e-9)


@given(worlds())
@settings(max_examples=80)
def test_the_same_bytes_cross_the_link_however_they_are_sent(world: World) -> None:
    scenario, workload, load = world
    assume(len(scenario.pools) > 1)
    result = simulate(scenario, workload, load)
    records, link = result.requests, scenario.kv_on_link
    handed = records.input_tokens[records.finished & (records.output_tokens > 1)]
    expected = (
        handed.sum() * link.token_bytes
        + np.minimum(handed, link.window_tokens).sum() * link.window_token_bytes
        + len(handed) * link.request_bytes
    )
    assert result.handed_off_bytes == pytest.approx(expected, rel=1e-9)


def test_places_set_aside_count_as_taken() -> None:
    """One seat in the decode pool: the second prompt is sent only when the first has gone."""
    pools = (pool(role="prefill", link_bytes_per_s=1e10), pool(role="decode", seats=1))
    scenario = Scenario(pools, kv_on_link=KvOnLink(TOKEN_BYTES), send_layers=8)
    workload = workload_of([0.0, 0.0], [400, 400], [100, 100])
    records = simulate(scenario, workload, OfferedLoad(np.zeros(2), 2)).requests
    assert records.decode_wait_s[0] == 0
    assert records.first_token_s[1] > records.finish_s[0]
