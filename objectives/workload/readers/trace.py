"""Any trace, told by its content, to a workload, with an account of every row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from objectives.workload.load import first
from objectives.workload.parquet import MAGIC, is_native, read_parquet
from objectives.workload.readers.agentx import AGENTX
from objectives.workload.readers.azure import AZURE
from objectives.workload.readers.bailian import BAILIAN
from objectives.workload.readers.burstgpt import BURSTGPT
from objectives.workload.readers.clients import is_client_folder, sampled
from objectives.workload.readers.columns import Columns, TraceRead
from objectives.workload.readers.conversations import conversations, is_conversations
from objectives.workload.readers.lengths import SPLITWISE_CSV, VIDUR_CSV
from objectives.workload.readers.lines import text_lines
from objectives.workload.readers.mapped import ColumnMapping, mapped_format, parquet_rows
from objectives.workload.readers.message_replay import MESSAGE_REPLAY
from objectives.workload.readers.mooncake import MOONCAKE
from objectives.workload.readers.multi_turn import MULTI_TURN
from objectives.workload.readers.ragpulse import RAGPULSE
from objectives.workload.readers.row import TraceFormat
from objectives.workload.readers.spans import SPANS
from objectives.workload.readers.tracelab import TRACELAB, TRACELAB_REPLAY
from objectives.workload.workload import Workload
from spaces.errors import InputError

FORMATS = (
    BAILIAN,
    RAGPULSE,
    TRACELAB,
    MESSAGE_REPLAY,
    AGENTX,
    SPANS,
    MULTI_TURN,
    MOONCAKE,
    AZURE,
    BURSTGPT,
    TRACELAB_REPLAY,
    VIDUR_CSV,
    SPLITWISE_CSV,
)
GENERATORS = {
    "servegen-folder": "a folder of chunk-K-trace.csv and chunk-K-dataset.json, to sample from",
    "vllm-multi-turn-json": "JSON with filetype generate_conversations, to sample from",
    "servefront-parquet": "Parquet as write_parquet makes it",
}
KNOWN = (
    "known formats are "
    + "; ".join(f"{form.name}: {form.tell_tale}" for form in FORMATS)
    + "; "
    + "; ".join(f"{name}: {tell_tale}" for name, tell_tale in GENERATORS.items())
    + "; any other table of requests is read with a mapping of its columns"
)


def read_trace(
    path: Path, limit: int | None = None, columns: ColumnMapping | None = None, seed: int = 1
) -> TraceRead:
    """The requests of a trace; with `limit` reading stops after so many are kept.

    The format is told by content, not by the file's name; gzip and zstd are unpacked. A folder of
    session files is read as one trace in the order of their names. With `columns` the file is a
    table, CSV, JSON lines or Parquet, of which the mapping names the columns. Formats that only
    describe a generator are sampled with `seed`.

    Rows without input or output tokens are failed requests: they are dropped and counted. Rows
    that come after a later one are sorted into place and reported. Everything else that is wrong
    raises an `InputError` with file and line: nothing is guessed or repaired.
    """
    if limit is not None and limit < 1:
        raise InputError("at least one request must be read", key="limit", value=limit)
    if path.is_dir():
        return _folder(path, limit, seed)
    if _is_parquet(path):
        return _parquet(path, limit, columns)
    with closing(text_lines(path, KNOWN)) as lines:
        head = next(lines, None)
        if head is None:
            raise InputError("the file is empty", where=str(path), remedy=KNOWN)
        if columns is not None:
            form = mapped_format(columns, csv=not head[1].startswith("{"))
            return _read(form, head, lines, path, limit)
        head, rest = _one_line_document(head, lines)
        generator = _generator(head[1])
        if generator is not None:
            return _sampled_conversations(generator, path, limit, seed)
        return _read(_recognised(head, path), head, rest, path, limit)


def _read(
    form: TraceFormat,
    head: tuple[int, str],
    lines: Iterable[tuple[int, str]],
    path: Path,
    limit: int | None,
) -> TraceRead:
    columns = Columns(form)
    columns.fill(lines if form.has_header else chain([head], lines), head[1], path, limit)
    return columns.finished(path)


def _recognised(head: tuple[int, str], path: Path) -> TraceFormat:
    number, line = head
    for form in FORMATS:
        if form.recognises(line):
            return form
    raise InputError(
        "the format of the trace is not known",
        where=f"{path}:{number}",
        value=line.strip()[:60],
        remedy=KNOWN,
    )


def _one_line_document(
    head: tuple[int, str], lines: Iterator[tuple[int, str]]
) -> tuple[tuple[int, str], Iterable[tuple[int, str]]]:
    """A JSON document over several lines as one line; anything else as it is."""
    if head[1].strip()[-1] not in "{[,":
        return head, lines
    rest = list(lines)
    try:
        document = json.loads("".join([head[1], *(line for _, line in rest)]))
    except ValueError:
        return head, rest
    sessions = document if isinstance(document, list) else [document]
    packed = [(head[0], json.dumps(session) + "\n") for session in sessions]
    return (packed[0], packed[1:]) if packed else (head, rest)


def _generator(line: str) -> dict[str, Any] | None:
    if '"filetype"' not in line:
        return None
    document = json.loads(line)
    return document if isinstance(document, dict) and is_conversations(document) else None


def _sampled_conversations(
    document: dict[str, Any], path: Path, limit: int | None, seed: int
) -> TraceRead:
    try:
        workload = conversations(document, path.name, seed)
    except InputError as error:
        raise error.located(str(path)) from None
    note = "the file has no times: all sessions begin at time 0, turns without a pause"
    return _sampled("vllm-multi-turn-json", workload, limit, {}, note)


def _folder(path: Path, limit: int | None, seed: int) -> TraceRead:
    if is_client_folder(path):
        workload, dropped = sampled(path, limit, seed)
        note = f"requests are drawn from the distributions of the clients, with seed {seed}"
        return _sampled("servegen-folder", workload, None, dropped, note)
    files = sorted(file for file in path.iterdir() if file.name.endswith((".json", ".json.gz")))
    if not files:
        raise InputError(
            "a folder must hold ServeGen clients or JSON files of sessions",
            where=str(path),
            remedy=KNOWN,
        )
    return _session_files(path, files, limit)


def _session_files(path: Path, files: list[Path], limit: int | None) -> TraceRead:
    columns: Columns | None = None
    for file in files:
        with closing(text_lines(file, KNOWN)) as lines:
            head = next(lines, None)
            if head is None:
                raise InputError("the file is empty", where=str(file))
            head, rest = _one_line_document(head, lines)
            form = _recognised(head, file)
            columns = columns or Columns(form)
            if form is not columns.form or not form.by_session or form.has_header:
                raise InputError(
                    "all files of a folder must hold sessions of one format",
                    where=str(file),
                    value=form.name,
                    remedy=f"the first file is {columns.form.name}; read other files one by one",
                )
            left = None if limit is None else limit
            columns.fill(chain([head], rest), head[1], file, left)
        if limit is not None and len(columns.arrival_ns) >= limit:
            break
    assert columns is not None, "there is a file"
    return columns.finished(path)


def _sampled(
    name: str, workload: Workload, limit: int | None, dropped: dict[str, int], note: str
) -> TraceRead:
    kept = workload if limit is None else first(workload, limit)
    return TraceRead(
        workload=kept,
        format=name,
        rows_read=len(kept) + sum(dropped.values()),
        rows_kept=len(kept),
        dropped=dropped,
        warnings=(note,),
    )


def _is_parquet(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _parquet(path: Path, limit: int | None, mapping: ColumnMapping | None) -> TraceRead:
    if mapping is None:
        if not is_native(path):
            raise InputError(
                "a Parquet file of another program needs a mapping of its columns",
                where=str(path),
                remedy="name at least input_tokens and output_tokens",
            )
        workload = read_parquet(path)
        kept = workload if limit is None else first(workload, limit)
        return TraceRead(kept, "servefront-parquet", len(kept), len(kept), {}, ())
    form = replace(mapped_format(mapping, csv=False), name="mapped-parquet")
    columns = Columns(form)
    for number, row in parquet_rows(path, mapping):
        columns.take(row, f"{path}:{number}")
        if len(columns.arrival_ns) == limit:
            break
    return columns.finished(path)
