"""Error messages: what they say, in which order, and what they suggest."""

from __future__ import annotations

import pytest

from spaces.errors import InputError, NothingFeasible, ServefrontError, did_you_mean


def test_a_message_tells_place_key_rule_value_and_remedy_in_that_order() -> None:
    error = InputError(
        "tp must divide the heads",
        where="plan.yaml",
        key="pools.0.tp",
        value=6,
        remedy="try 1, 2, 4, 8",
    )
    assert str(error) == (
        "plan.yaml: pools.0.tp: tp must divide the heads, but got 6; try 1, 2, 4, 8"
    )


def test_parts_that_are_not_known_leave_no_trace_in_the_message() -> None:
    assert str(InputError("a rule")) == "a rule"
    assert str(InputError("a rule", key="k")) == "k: a rule"


def test_a_value_of_zero_is_told() -> None:
    assert str(InputError("must be positive", value=0)) == "must be positive, but got 0"


def test_locating_an_error_fills_in_the_file_and_puts_the_parent_before_the_key() -> None:
    located = InputError("a rule", key="tp", value=3, remedy="r").located("f.yaml", "pools.1")
    assert str(located) == "f.yaml: pools.1.tp: a rule, but got 3; r"


def test_locating_keeps_a_place_that_is_already_known() -> None:
    assert InputError("a rule", where="inner.yaml").located("outer.yaml").where == "inner.yaml"


@pytest.mark.parametrize("kind", [InputError, NothingFeasible])
def test_every_user_facing_error_is_one_kind(kind: type[Exception]) -> None:
    assert issubclass(kind, ServefrontError)


def test_an_input_error_is_a_value_error_so_validators_may_raise_it() -> None:
    assert issubclass(InputError, ValueError)


def test_a_near_word_is_suggested_whatever_its_case() -> None:
    assert did_you_mean("H20", ["h200", "l40s"]) == "did you mean h200?"


def test_without_a_near_word_all_known_ones_are_listed_sorted() -> None:
    assert did_you_mean("zzz", ["b", "a", "b"]) == "known are a, b"


def test_aliases_are_suggested_but_not_listed() -> None:
    assert did_you_mean("h100-smx", ["b200"], ["h100-sxm"]) == "did you mean h100-sxm?"
    assert did_you_mean("zzz", ["b200"], ["h100-sxm"]) == "known are b200"
