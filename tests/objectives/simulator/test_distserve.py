"""Another simulator's answers (simdistserve), request by request, with its own coefficients."""

from __future__ import annotations

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


def test_prompts_of_the_case_with_two_stages_take_their_time(data_dir: Path) -> None:
    """No request is served faster than alone, and most exactly so.

    The waits of the others are not those that the arrivals of the file make, whatever serves
    them: some request waits although the one before it has ended. So decoding, which begins where
    they end, cannot be compared.
    """
    case = Case("w66b_r2", "facebook/opt-66b", prefill_tp=4, decode_tp=2, stages=2)
    told_s = distserve.answers(data_dir, case)["first_token_latency"].to_numpy() / 1e3
    alone_s = distserve.alone_s(data_dir, case)
    assert (told_s >= alone_s * (1 - 1e-5)).all()
    assert np.isclose(told_s, alone_s, rtol=1e-5).sum() == 727
