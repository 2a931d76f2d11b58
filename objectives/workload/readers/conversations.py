"""vLLM's multi-turn generator: a JSON of distributions, to sample conversations from.

The format of `generate_conversations` in vLLM's benchmarks/multi_turn. `num_turns` counts the
messages of both sides and is rounded up to an even number, at least 2; a lognormal with `average`
has the median `median_ratio` (0.85) times that. The file says nothing of times.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from objectives.workload.chains import chained
from objectives.workload.workload import FIRST, NO_PARENT, USER, Seconds, Tokens, Workload
from spaces.errors import InputError, did_you_mean

FILETYPE = "generate_conversations"
BLOCK_TOKENS = 16
MEDIAN_RATIO = 0.85
KNOWN = ("constant", "uniform", "lognormal", "zipf", "poisson")
STREAMS = ("turns", "prefix", "input", "output")


def is_conversations(document: dict[str, Any]) -> bool:
    """Whether a JSON document is such a file."""
    return document.get("filetype") == FILETYPE


def conversations(document: dict[str, Any], name: str, seed: int) -> Workload:
    """The conversations of the file, each turn sent when the one before has ended."""
    streams = {
        quantity: np.random.default_rng([seed, place]) for place, quantity in enumerate(STREAMS)
    }
    sessions = document.get("num_conversations")
    if type(sessions) is not int or sessions < 1:
        raise InputError(
            "a file must ask for conversations", key="num_conversations", value=sessions
        )
    inputs, outputs = _section(document, "prompt_input"), _section(document, "prompt_output")
    messages = np.maximum(_drawn(inputs, "num_turns", streams["turns"], sessions), 2)
    turns = (messages + messages % 2) // 2
    n = int(turns.sum())
    common = int(_drawn(inputs, "common_prefix_num_tokens", streams["prefix"], 1)[0])
    own = _drawn(inputs, "prefix_num_tokens", streams["prefix"], sessions)
    new = np.maximum(_drawn(inputs, "num_tokens", streams["input"], n), 1)
    output = np.maximum(_drawn(outputs, "num_tokens", streams["output"], n), 1)
    return _workload(name, turns, common, own, new, output)


def _workload(
    name: str, turns: Tokens, common: int, own: Tokens, new: Tokens, output: Tokens
) -> Workload:
    n = len(new)
    session = np.repeat(np.arange(len(turns), dtype=np.int32), turns)
    first = np.concatenate(([True], np.diff(session) > 0))
    begun = np.cumsum(new + output)
    before = begun - (new + output)
    base = np.repeat(before[first], turns)
    input_tokens = common + own[session] + (begun - output - base)
    parent = np.where(first, NO_PARENT, np.arange(n) - 1).astype(np.int32)
    kept = np.where(first, common, input_tokens[np.maximum(parent, 0)])
    offsets, ids = chained(parent, kept, input_tokens, BLOCK_TOKENS)
    return Workload(
        name=name,
        arrival_s=np.zeros(n),
        input_tokens=input_tokens,
        output_tokens=output,
        block_tokens=BLOCK_TOKENS,
        block_offsets=offsets,
        block_ids=ids,
        session=session,
        parent=parent,
        kind=np.where(first, FIRST, USER).astype(np.int8),
    )


def _section(document: dict[str, Any], name: str) -> dict[str, Any]:
    section = document.get(name)
    if not isinstance(section, dict):
        raise InputError("this section is required", key=name, value=section)
    return section


def _drawn(section: dict[str, Any], name: str, stream: np.random.Generator, n: int) -> Tokens:
    shape = section.get(name)
    if shape is None and name == "common_prefix_num_tokens":
        return np.zeros(n, dtype=np.int64)
    kind = shape.get("distribution") if isinstance(shape, dict) else None
    if kind not in KNOWN:
        raise InputError(
            "must be a known distribution",
            key=f"{name}.distribution",
            value=kind,
            remedy=did_you_mean(str(kind), KNOWN),
        )
    assert isinstance(shape, dict), "a known distribution stands in a mapping"
    try:
        values = _values(kind, shape, stream, n)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"a {kind} distribution needs its parameters", key=name, value=str(error)
        ) from None
    most = shape.get("max", np.inf) if kind != "uniform" else np.inf
    return np.rint(np.minimum(values, most)).astype(np.int64)


def _values(kind: str, shape: dict[str, Any], stream: np.random.Generator, n: int) -> Seconds:
    if kind == "constant":
        return np.full(n, float(shape["value"]))
    if kind == "uniform":
        low, high = int(shape["min"]), int(shape["max"])
        return stream.integers(low, high, n, endpoint=True).astype(float)
    if kind == "zipf":
        return stream.zipf(float(shape["alpha"]), n).astype(float)
    if kind == "poisson":
        return stream.poisson(float(shape["alpha"]), n).astype(float)
    if "average" in shape:
        ratio = float(shape.get("median_ratio", MEDIAN_RATIO))
        median, sigma = float(shape["average"]) * ratio, math.sqrt(-2 * math.log(ratio))
        return median * np.exp(sigma * stream.standard_normal(n))
    return stream.lognormal(float(shape["mean"]), float(shape["sigma"]), n)
