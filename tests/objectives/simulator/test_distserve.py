"""Another simulator's answers (simdistserve), request by request, with its own coefficients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.objectives.simulator import distserve
from tests.objectives.simulator.distserve import Case

SMALL_BATCH = 95  # from here on other coefficients count; none of the cases gets there


@pytest.mark.parametrize(
    "case",
    [
        Case("w13b_r2", "facebook/opt-13b", prefill_tp=2, decode_tp=1),
        Case("w13b_r15", "facebook/opt-13b", prefill_tp=2, decode_tp=1),
    ],
    ids=lambda case: case.workload,
)
def test_every_request_fares_as_in_simdistserve(case: Case, data_dir: Path) -> None:
    served, told = distserve.served(data_dir, case), distserve.answers(data_dir, case)
    np.testing.assert_allclose(served.first_token_s, told["first_token_latency"] / 1e3, rtol=1e-5)
    np.testing.assert_allclose(served.decoding_s, told["decoding_latency"] / 1e3, rtol=1e-5)
    assert served.mean_batch < SMALL_BATCH


# The answers of the third case are not those of the arrivals in its file, but of another file's,
# 1.5 a second there and quickened to 2.
TWO_STAGES = Case(
    "w66b_r2",
    "facebook/opt-66b",
    prefill_tp=4,
    decode_tp=2,
    stages=2,
    arrivals="w13b_r15",
    scale=0.75,
)


def test_answers_of_the_third_case_contradict_the_arrivals_in_its_file(data_dir: Path) -> None:
    """A request waits that comes when all before it have ended, whatever serves them."""
    own = replace(TWO_STAGES, arrivals="", scale=1.0)
    arrivals_s = distserve.arrivals_s(data_dir, own)
    told_s = distserve.answers(data_dir, own)["first_token_latency"].to_numpy() / 1e3
    alone_s = distserve.alone_s(data_dir, own)
    late = 5
    assert (arrivals_s + told_s)[:late].max() < arrivals_s[late]
    assert told_s[late] > 1.3 * alone_s[late]


def test_every_prompt_fares_as_in_simdistserve_with_the_other_files_arrivals(
    data_dir: Path,
) -> None:
    served, told = distserve.served(data_dir, TWO_STAGES), distserve.answers(data_dir, TWO_STAGES)
    told_s = told["first_token_latency"] / 1e3
    np.testing.assert_allclose(served.first_token_s, told_s, rtol=1e-5, atol=1e-6)


def test_decoding_differs_by_the_merging_of_batches_between_stages_alone(data_dir: Path) -> None:
    served, told = distserve.served(data_dir, TWO_STAGES), distserve.answers(data_dir, TWO_STAGES)
    told_s = told["decoding_latency"].to_numpy() / 1e3
    starts_s = distserve.arrivals_s(data_dir, TWO_STAGES) + served.first_token_s
    merged_s = distserve.merged_decoding_s(data_dir, TWO_STAGES, starts_s)
    np.testing.assert_allclose(merged_s, told_s, rtol=1e-5)
    assert 1.0 < served.decoding_s.mean() / told_s.mean() < 1.08
