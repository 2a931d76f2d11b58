"""The lines of a text file, packed by gzip or not."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Generator, Iterator
from io import BufferedReader
from pathlib import Path

from spaces.errors import InputError

GZIP_MAGIC = b"\x1f\x8b"
LONGEST_LINE = 2**26


def text_lines(path: Path, remedy: str) -> Generator[tuple[int, str], None, None]:
    """Line numbers from 1 and lines with their ends; blank lines are counted but left out.

    One line is in memory at a time. Raises `InputError`, with `remedy`, where there is no file,
    or one that is not text, is damaged, or has no line end for 64 MiB.
    """
    where = str(path)
    try:
        with path.open("rb") as file:
            packed = file.peek(2)[:2] == GZIP_MAGIC
            yield from _decoded(gzip.GzipFile(fileobj=file) if packed else file, where, remedy)
    except FileNotFoundError:
        raise InputError("the file must exist", where=where) from None
    except IsADirectoryError:
        raise InputError(
            "a file is needed, this is a directory", where=where, remedy=remedy
        ) from None
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise InputError(
            "the gzip file is damaged or cut off", where=where, remedy="fetch it again"
        ) from None
    except OSError as error:
        raise InputError(f"the file cannot be read ({error.strerror})", where=where) from None


def _decoded(
    stream: BufferedReader | gzip.GzipFile, where: str, remedy: str
) -> Iterator[tuple[int, str]]:
    number = 0
    while raw := stream.readline(LONGEST_LINE):
        number += 1
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text or len(raw) == LONGEST_LINE:
            raise InputError(
                "a trace must be UTF-8 text in lines, this looks like binary data",
                where=f"{where}:{number}",
                remedy=remedy,
            )
        if not text.isspace():
            yield number, text
