"""The native form of a workload as a Parquet file: one row a request, exact in both directions.

Needs the extra `parquet` (pyarrow).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from objectives.workload.workload import KINDS, RequestClass, Workload, broken_law
from spaces.errors import InputError

VERSION = 1
METADATA_KEY = b"servefront.workload"
ROWS_AT_ONCE = 65_536
MAGIC = b"PAR1"

COLUMNS: dict[str, type[np.generic]] = {
    "session": np.int32,
    "parent": np.int32,
    "kind": np.int8,
    "arrival_s": np.float64,
    "gap_s": np.float64,
    "input_tokens": np.int64,
    "output_tokens": np.int64,
    "class_id": np.int32,
}


def write_parquet(workload: Workload, path: Path) -> None:
    """Write a workload; `read_parquet` gives back the same arrays.

    Columns are those of `Workload`, with `kind` in words and `block_ids` as a list in each row.
    Name, block size and classes are in the metadata under `servefront.workload`, as JSON.
    """
    pa, pq = _pyarrow()
    facts = {
        "version": VERSION,
        "name": workload.name,
        "block_tokens": workload.block_tokens,
        "classes": [asdict(each) for each in workload.classes],
    }
    schema = pa.schema([(name, kind) for name, kind in _arrow_types(pa).items()])
    schema = schema.with_metadata({METADATA_KEY: json.dumps(facts).encode()})
    with _told(path, "written"), pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for start in range(0, len(workload), ROWS_AT_ONCE):
            writer.write_batch(_batch(pa, schema, workload, start))


def is_native(path: Path) -> bool:
    """Whether the file is a Parquet file that `write_parquet` wrote."""
    _, pq = _pyarrow()
    with _told(path, "read"):
        return METADATA_KEY in (pq.read_schema(path).metadata or {})


def read_parquet(path: Path) -> Workload:
    """The workload in a file that `write_parquet` wrote.

    Raises `InputError` where the file is none, is of a later version, or holds arrays that break
    a law of `Workload`.
    """
    _, pq = _pyarrow()
    with _told(path, "read"), pq.ParquetFile(path) as file:
        facts = _facts(file.schema_arrow.metadata or {}, path)
        columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        counts, ids = [], []
        for batch in file.iter_batches(ROWS_AT_ONCE):
            for name in COLUMNS:
                columns[name].append(_values(batch.column(name), name))
            blocks = batch.column("block_ids")
            counts.append(blocks.value_lengths().to_numpy(zero_copy_only=False))
            ids.append(blocks.flatten().to_numpy(zero_copy_only=False))
    joined = {name: _joined(parts, COLUMNS[name]) for name, parts in columns.items()}
    workload = Workload(
        name=facts["name"],
        block_tokens=facts["block_tokens"],
        block_offsets=np.concatenate(([0], np.cumsum(_joined(counts, np.int64)))),
        block_ids=_joined(ids, np.int32),
        classes=tuple(RequestClass(**each) for each in facts["classes"]),
        **joined,
    )
    law = broken_law(workload)
    if law is not None:
        raise InputError(law, where=str(path), remedy="write the file with write_parquet")
    return workload


def _facts(metadata: dict[bytes, bytes], path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(metadata.get(METADATA_KEY, b"{}"))
    if facts.get("version") != VERSION:
        raise InputError(
            f"a workload in Parquet must be of version {VERSION}",
            where=str(path),
            value=facts.get("version", "no workload"),
            remedy="read other Parquet files with a mapping of columns",
        )
    return facts


def _arrow_types(pa: Any) -> dict[str, Any]:
    types = {name: pa.from_numpy_dtype(kind) for name, kind in COLUMNS.items()}
    types["kind"] = pa.dictionary(pa.int8(), pa.string())
    return types | {"block_ids": pa.list_(pa.int32())}


def _batch(pa: Any, schema: Any, workload: Workload, start: int) -> Any:
    end = min(start + ROWS_AT_ONCE, len(workload))
    rows = slice(start, end)
    offsets = workload.block_offsets[start : end + 1]
    arrays = [pa.array(getattr(workload, name)[rows]) for name in COLUMNS]
    kinds = pa.DictionaryArray.from_arrays(pa.array(workload.kind[rows]), list(KINDS))
    arrays[list(COLUMNS).index("kind")] = kinds
    ids = pa.array(workload.block_ids[offsets[0] : offsets[-1]])
    lists = pa.ListArray.from_arrays(pa.array((offsets - offsets[0]).astype(np.int32)), ids)
    return pa.record_batch([*arrays, lists], schema=schema)


def _values(column: Any, name: str) -> Any:
    if name != "kind":
        return column.to_numpy(zero_copy_only=False)
    words = column.dictionary.to_pylist()
    unknown = sorted(set(words) - set(KINDS))
    if unknown:
        raise InputError("unknown kind of turn", key="kind", value=unknown[0])
    places = np.array([KINDS.index(word) for word in words] or [0], dtype=np.int8)
    return places[column.indices.to_numpy(zero_copy_only=False)]


def _joined(parts: list[Any], kind: type[np.generic]) -> Any:
    return np.concatenate(parts).astype(kind, copy=False) if parts else np.empty(0, kind)


@contextmanager
def _told(path: Path, done: str) -> Iterator[None]:
    pa, _ = _pyarrow()
    try:
        yield
    except FileNotFoundError:
        raise InputError("the file must exist", where=str(path)) from None
    except (pa.ArrowException, OSError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"the Parquet file cannot be {done} ({reason})", where=str(path)
        ) from None


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise InputError(
            "Parquet files need the package pyarrow",
            remedy="pip install 'servefront[parquet]'",
        ) from None
    return pa, pq
