"""Generations of an engine's releases: what a calibration can tell apart beside the engine."""

from __future__ import annotations

import re

# Which number of a release counts, and how many of its values make a generation: about half a
# year of monthly vLLM and SGLang releases, one minor release of the others.
_COUNTED = {"vllm": (1, 5), "sglang": (2, 5)}
_OTHERS = (1, 1)


def generation_of(engine: str, release: str) -> str:
    """The generation of a release, named by its first and last member; empty where unknown.

    Releases of one generation share the numbers before the one that counts, and that one divided
    by the generation's size (vLLM: the second in fives; SGLang: the third in fives; others: the
    second). What follows is not looked at.

    >>> [generation_of("vllm", "0.19.1"), generation_of("sglang", "0.5.9.post1")]
    ['0.15-0.19', '0.5.5-0.5.9']
    >>> [generation_of("trtllm", "1.3.0rc14"), generation_of("vllm", "nightly")]
    ['1.3', '']
    """
    place, size = _COUNTED.get(engine, _OTHERS)
    found = re.match(r"\D*(\d+(?:\.\d+)*)", release)
    numbers = found.group(1).split(".") if found else []
    if len(numbers) <= place:
        return ""
    first = int(numbers[place]) // size * size
    ends = [".".join([*numbers[:place], str(one)]) for one in (first, first + size - 1)]
    return "-".join(dict.fromkeys(ends))
