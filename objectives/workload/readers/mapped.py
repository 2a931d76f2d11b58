"""Any table of requests, CSV, JSON lines or Parquet, by a mapping of its columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from objectives.workload.readers.azure import wall_clock_ns
from objectives.workload.readers.cells import split
from objectives.workload.readers.objects import json_object
from objectives.workload.readers.row import (
    Row,
    TraceFormat,
    nanoseconds,
    remedy_for_torn,
    token_count,
)
from objectives.workload.workload import RequestClass
from spaces.documents import Document
from spaces.errors import InputError, did_you_mean

TimeUnit = Literal["s", "ms", "us", "ns", "wall-clock"]
UNIT_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
BLOCK_TOKENS = 16


class ColumnMapping(Document):
    """The names of the columns that hold what is needed, and the unit of times.

    Without `arrival` all requests arrive at time 0; with `session` rows of one session wait for
    one another, `gap` after the end of the one before where that column is given. `kept_tokens`
    is what a turn shares with the turn before; without it nothing is known of prefixes.
    `tenant` and `priority` make classes.
    """

    input_tokens: str
    output_tokens: str
    arrival: str | None = None
    session: str | None = None
    gap: str | None = None
    service: str | None = None
    kept_tokens: str | None = None
    tenant: str | None = None
    priority: str | None = None
    time_unit: TimeUnit = "s"

    def columns(self) -> list[str]:
        """The columns that must be there."""
        named = self.model_dump(exclude={"time_unit"}, exclude_none=True)
        return sorted(set(named.values()))


def mapped_format(mapping: ColumnMapping, csv: bool) -> TraceFormat:
    """The format of lines in which the mapped columns are CSV cells or JSON fields."""

    def opened(head: str, _path: Path) -> Callable[[str], list[Row]]:
        if not csv:
            return lambda line: [mapped_row(mapping, json_object(line), line)]
        header = split(head)
        check_columns(mapping, header)

        def parsed(line: str) -> list[Row]:
            values = split(line)
            if len(values) != len(header):
                raise InputError(
                    f"each row must have {len(header)} fields",
                    value=line.strip()[:60],
                    remedy=remedy_for_torn(line),
                )
            return [mapped_row(mapping, dict(zip(header, values, strict=True)), line)]

        return parsed

    return TraceFormat(
        name="mapped-csv" if csv else "mapped-jsonl",
        tell_tale="any table with a mapping of its columns",
        time_key=mapping.arrival or "",
        has_header=csv,
        block_tokens=BLOCK_TOKENS if mapping.kept_tokens else 0,
        recognises=lambda line: True,
        opened=opened,
        by_session=mapping.session is not None,
    )


def check_columns(mapping: ColumnMapping, header: tuple[str, ...]) -> None:
    """Raise `InputError` for the first mapped column that is not there."""
    for name in mapping.columns():
        if name not in header:
            raise InputError(
                "a mapped column must be in the file",
                key=name,
                value=", ".join(header),
                remedy=did_you_mean(name, header),
            )


def parquet_rows(path: Path, mapping: ColumnMapping) -> Iterator[tuple[int, Row]]:
    """Number from 1 and content of each row of a Parquet file, some thousands at a time."""
    import pyarrow.parquet as pq

    number = 0
    with pq.ParquetFile(path) as file:
        check_columns(mapping, tuple(file.schema_arrow.names))
        for batch in file.iter_batches(65_536, columns=mapping.columns()):
            for values in batch.to_pylist():
                number += 1
                try:
                    yield number, mapped_row(mapping, values, "\n")
                except InputError as error:
                    raise error.located(f"{path}:{number}") from None


def mapped_row(mapping: ColumnMapping, values: dict[str, Any], line: str) -> Row:
    """The request in the named values of one row."""

    def time(name: str | None) -> int | None:
        value = None if name is None else values.get(name)
        if name is None or value in (None, ""):
            return None
        if mapping.time_unit == "wall-clock" and name == mapping.arrival:
            return wall_clock_ns(str(value), name, line)
        unit = "s" if mapping.time_unit == "wall-clock" else mapping.time_unit
        return nanoseconds(_number(value), name, UNIT_NS[unit], unit)

    session = None if mapping.session is None else values.get(mapping.session)
    return Row(
        arrival_ns=time(mapping.arrival),
        input_tokens=_tokens(values, mapping.input_tokens),
        output_tokens=_tokens(values, mapping.output_tokens),
        session=None if session in (None, "") else str(session),
        gap_ns=time(mapping.gap),
        service_ns=time(mapping.service),
        kept_tokens=None if mapping.kept_tokens is None else _tokens(values, mapping.kept_tokens),
        request_class=_class(mapping, values),
    )


def _class(mapping: ColumnMapping, values: dict[str, Any]) -> RequestClass | None:
    if mapping.tenant is None and mapping.priority is None:
        return None
    tenant = RequestClass().tenant if mapping.tenant is None else str(values[mapping.tenant])
    priority = 0 if mapping.priority is None else _tokens(values, mapping.priority)
    return RequestClass(tenant=tenant, priority=priority)


def _number(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return float(value) if not value.lstrip("-").isdigit() else int(value)
    except ValueError:
        return value


def _tokens(values: dict[str, Any], name: str) -> int:
    value = _number(values.get(name))
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return token_count(value, name)
