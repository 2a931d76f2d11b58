"""When requests are sent, and which of them fit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.workload import (
    SyntheticSpec,
    Workload,
    describe,
    first,
    fitting,
    generate,
    offered,
)
from spaces.errors import InputError
from spaces.plan import Load


def synthetic(requests: int = 200, **others: object) -> Workload:
    spec = {"requests": requests, "input_tokens": 1000, "output_tokens": 100} | others
    return generate(SyntheticSpec.model_validate(spec), seed=3)


def test_without_a_load_requests_arrive_as_recorded() -> None:
    workload = synthetic()
    _, load = offered(workload, None)
    assert np.array_equal(load.arrival_s, workload.arrival_s)
    assert load.concurrency == 0


def test_closed_loop_has_a_concurrency_and_no_times() -> None:
    _, load = offered(synthetic(5), Load(concurrency=16))
    assert load.concurrency == 16
    assert load.arrival_s.tolist() == [0] * 5


@given(st.floats(1e-3, 1e3))
def test_open_loop_has_the_rate_asked_for_and_the_recorded_bursts(rate: float) -> None:
    workload = synthetic(50, arrivals={"gamma": {"cv": 3}})
    _, load = offered(workload, Load(request_rate=rate))
    assert load.concurrency == 0
    assert 49 / load.arrival_s[-1] == pytest.approx(rate)
    cv = np.diff(load.arrival_s).std() / np.diff(load.arrival_s).mean()
    assert cv == pytest.approx(describe(workload)["interarrival_cv"])


@pytest.mark.parametrize("requests", [1, 4])
def test_rate_of_requests_at_one_moment_is_refused(requests: int) -> None:
    whole = synthetic(8)
    at_once = Workload(
        name="burst",
        arrival_s=np.zeros(requests),
        input_tokens=whole.input_tokens[:requests],
        output_tokens=whole.output_tokens[:requests],
        block_tokens=0,
        block_offsets=np.zeros(requests + 1, dtype=np.int64),
        block_ids=whole.block_ids,
    )
    with pytest.raises(InputError, match="concurrency") as caught:
        offered(at_once, Load(request_rate=2))
    assert (caught.value.where, caught.value.key) == ("burst", "request_rate")
    assert offered(at_once, Load(concurrency=2))[1].concurrency == 2


def test_only_requests_within_the_context_are_kept_and_the_rest_counted() -> None:
    whole = synthetic(
        1000, input_tokens={"uniform": [64, 1000]}, shared_prefix_tokens=128, output_tokens=100
    )
    kept, dropped = fitting(whole, 600)
    fits = whole.input_tokens <= 500
    assert 0 < dropped == np.count_nonzero(~fits)
    assert kept.input_tokens.tolist() == whole.input_tokens[fits].tolist()
    assert kept.arrival_s[0] == 0
    assert np.allclose(np.diff(kept.arrival_s), np.diff(whole.arrival_s[fits]))


def test_request_that_just_fits_is_kept() -> None:
    workload = synthetic(3)
    assert fitting(workload, 1100) == (workload, 0)
    assert fitting(workload, 1099)[1] == 3
    assert len(fitting(workload, 1099)[0]) == 0


def test_blocks_of_kept_requests_are_theirs_and_dense() -> None:
    whole = synthetic(50, input_tokens={"uniform": [64, 1000]}, shared_prefix_tokens=128)
    kept, _ = fitting(whole, 600)
    rows = np.flatnonzero(whole.input_tokens <= 500)
    renamed: dict[int, int] = {}
    expected = [
        [renamed.setdefault(block, len(renamed)) for block in whole.block_ids[start:end].tolist()]
        for start, end in zip(
            whole.block_offsets[rows], whole.block_offsets[rows + 1], strict=True
        )
    ]
    assert kept.block_ids.tolist() == [block for blocks in expected for block in blocks]
    assert np.diff(kept.block_offsets).tolist() == [len(blocks) for blocks in expected]


def test_first_requests_are_a_prefix_of_the_workload() -> None:
    whole = synthetic(20, shared_prefix_tokens=640)
    head = first(whole, 7)
    assert len(head) == 7
    assert np.array_equal(head.arrival_s, whole.arrival_s[:7])
    assert np.array_equal(head.block_ids, whole.block_ids[: whole.block_offsets[7]])
    assert first(whole, 20) is whole
    assert first(whole, 99) is whole


def test_no_requests_are_refused() -> None:
    with pytest.raises(InputError, match="at least one"):
        first(synthetic(2), 0)
