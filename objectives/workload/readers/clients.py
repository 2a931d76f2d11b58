"""ServeGen folders: not a trace but rates and length distributions of clients, to sample from.

The format of alibaba/ServeGen (arXiv 2505.09999). `chunk-K-trace.csv` has a row for each 600 s of
client K: start, requests per second, coefficient of variation of the gaps, their family and its
two parameters. `chunk-K-dataset.json` has probabilities of lengths for each 21,600 s.
"""

from __future__ import annotations

import ast
import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from objectives.workload.readers.row import MOST_TOKENS
from objectives.workload.workload import Seconds, Tokens, Workload
from spaces.documents import read_text
from spaces.errors import InputError

WINDOW_S = 600.0
LENGTHS_WINDOW_S = 21_600
DEFAULT_REQUESTS = 100_000
WITHOUT_LENGTHS = "no length distribution of that client at that time"
FAMILIES = ("Gamma", "Weibull")
INPUTS = ("input_tokens", "text_tokens", "image_tokens", "audio_tokens", "video_tokens")


@dataclass(frozen=True, slots=True)
class _Window:
    start_s: float
    rate_per_s: float
    family: str
    shape: float


@dataclass(frozen=True, slots=True)
class _Client:
    name: str
    windows: dict[float, _Window]
    lengths: dict[int, dict[str, tuple[Tokens, Seconds]]]


def is_client_folder(folder: Path) -> bool:
    """Whether a folder holds ServeGen clients."""
    return any(folder.glob("chunk-*-trace.csv"))


def sampled(folder: Path, requests: int | None, seed: int) -> tuple[Workload, dict[str, int]]:
    """Requests drawn from all clients of a folder, and how many were dropped for which reason.

    Windows are sampled one after another from the first with traffic, until `requests` (100,000
    by default) are there or the clients end. Gaps have the family and shape of the window and the
    mean 1 / rate; input and output lengths are drawn independently. Each client and window has a
    random stream of its own.
    """
    clients = [_client(path) for path in sorted(folder.glob("chunk-*-trace.csv"))]
    starts = sorted({start for client in clients for start in client.windows})
    wanted = DEFAULT_REQUESTS if requests is None else requests
    dropped: Counter[str] = Counter()
    parts: list[tuple[Seconds, Tokens, Tokens]] = []
    count = 0
    for start_s in starts:
        for number, client in enumerate(clients):
            if start_s in client.windows:
                stream = np.random.default_rng([seed, number, int(start_s)])
                part = _requests(client, client.windows[start_s], stream, dropped)
                parts.append(part)
                count += len(part[0])
        if count >= wanted:
            break
    if not count:
        raise InputError("the clients must have traffic", where=str(folder), value="no requests")
    return _workload(folder.name, parts, wanted), dict(dropped)


def _workload(name: str, parts: list[tuple[Seconds, Tokens, Tokens]], wanted: int) -> Workload:
    arrival_s, inputs, outputs = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(arrival_s, kind="stable")[:wanted]
    n = len(order)
    return Workload(
        name=name,
        arrival_s=arrival_s[order] - arrival_s[order[0]],
        input_tokens=inputs[order],
        output_tokens=outputs[order],
        block_tokens=0,
        block_offsets=np.zeros(n + 1, dtype=np.int64),
        block_ids=np.zeros(0, dtype=np.int32),
    )


def _requests(
    client: _Client, window: _Window, stream: np.random.Generator, dropped: Counter[str]
) -> tuple[Seconds, Tokens, Tokens]:
    arrival_s = window.start_s + _arrivals(window, stream)
    n = len(arrival_s)
    table = client.lengths.get(int(window.start_s // LENGTHS_WINDOW_S) * LENGTHS_WINDOW_S, {})
    sides = [[table[key] for key in INPUTS if key in table]]
    sides.append([table["output_tokens"]] if "output_tokens" in table else [])
    if not all(sides):
        dropped[WITHOUT_LENGTHS] += n
        empty = np.zeros(0, dtype=np.int64)
        return np.zeros(0), empty, empty
    inputs, outputs = (
        np.sum([_drawn(values, stream, n) for values in side], axis=0).astype(np.int64)
        for side in sides
    )
    served = (inputs > 0) & (outputs > 0)
    if not served.all():
        dropped["no input or output tokens"] += int(np.count_nonzero(~served))
    return arrival_s[served], inputs[served], outputs[served]


def _arrivals(window: _Window, stream: np.random.Generator) -> Seconds:
    """Times within a window; enough gaps are drawn that the window is full."""
    mean_s = 1.0 / window.rate_per_s
    arrivals = np.zeros(0)
    while not len(arrivals) or arrivals[-1] < WINDOW_S:
        n = max(16, int(1.2 * WINDOW_S / mean_s))
        if window.family == "Gamma":
            gaps = stream.standard_gamma(window.shape, n) / window.shape
        else:
            gaps = stream.weibull(window.shape, n) / math.gamma(1 + 1 / window.shape)
        begun = arrivals[-1] if len(arrivals) else 0.0
        arrivals = np.concatenate((arrivals, begun + np.cumsum(gaps) * mean_s))
    return arrivals[arrivals < WINDOW_S]


def _drawn(values: tuple[Tokens, Seconds], stream: np.random.Generator, n: int) -> Tokens:
    tokens, steps = values
    drawn: Tokens = tokens[np.searchsorted(steps, stream.random(n) * steps[-1], side="right")]
    return drawn


def _client(path: Path) -> _Client:
    windows = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        try:
            window = _window(line)
        except (ValueError, InputError) as error:
            rule = error.rule if isinstance(error, InputError) else "six fields are needed"
            raise InputError(rule, where=f"{path}:{number}", value=line[:60]) from None
        if window is not None:
            windows[window.start_s] = window
    dataset = path.with_name(path.name.replace("-trace.csv", "-dataset.json"))
    return _Client(path.name, windows, _lengths(dataset))


def _window(line: str) -> _Window | None:
    start, rate, _cv, family, shape, _scale = (cell.strip() for cell in line.split(","))
    if float(rate) == 0:
        return None
    if family not in FAMILIES:
        raise InputError("gaps must be of the family Gamma or Weibull", value=family)
    window = _Window(float(start), float(rate), family, float(shape))
    if not (0 < window.rate_per_s < math.inf and 0 < window.shape < math.inf):
        raise InputError("rate and shape must be above 0")
    return window


def _lengths(path: Path) -> dict[int, dict[str, tuple[Tokens, Seconds]]]:
    try:
        tables: dict[str, dict[str, Any]] = json.loads(read_text(path))
        return {
            int(start): {
                key: values
                for key, text in table.items()
                if (values := _probabilities(text)) is not None
            }
            for start, table in tables.items()
        }
    except (ValueError, SyntaxError, AttributeError, TypeError) as error:
        raise InputError(
            "a data set must be JSON with probabilities of lengths by window and field",
            where=str(path),
            value=str(error).splitlines()[0],
        ) from None


def _probabilities(text: Any) -> tuple[Tokens, Seconds] | None:
    table = ast.literal_eval(text) if isinstance(text, str) else text
    if not table:
        return None
    numbers = np.array([int(key) for key in table], dtype=np.int64)
    weights = np.array([float(value) for value in table.values()])
    if (weights < 0).any() or not 0 < weights.sum() < math.inf:
        raise ValueError("probabilities must be positive")
    if (numbers < 0).any() or (numbers > MOST_TOKENS).any():
        raise ValueError("lengths must be numbers of tokens")
    return numbers, np.cumsum(weights)
