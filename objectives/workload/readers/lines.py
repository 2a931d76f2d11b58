"""The lines of a text file, packed by gzip or zstd or not at all."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Generator, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, cast

from spaces.errors import InputError

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
LONGEST_LINE = 2**26


def text_lines(path: Path, remedy: str) -> Generator[tuple[int, str], None, None]:
    """Line numbers from 1 and lines with their ends; blank lines are counted but left out.

    One line is in memory at a time. Raises `InputError`, with `remedy`, where there is no file,
    or one that is not text, is damaged, or has no line end for 64 MiB.
    """
    where = str(path)
    try:
        with path.open("rb") as file:
            yield from _decoded(_unpacked(file, where), where, remedy)
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


def _unpacked(file: BufferedReader, where: str) -> BinaryIO:
    magic = file.peek(4)[:4]
    if magic[:2] == GZIP_MAGIC:
        return cast(BinaryIO, gzip.GzipFile(fileobj=file))
    if magic == ZSTD_MAGIC:
        return _ZstdFile(_zstandard(where), file, where).buffered()
    return file


class _ZstdFile(io.RawIOBase):
    """Bytes of the zstd frames in a file; a cut or damaged one is an `InputError`.

    The library's own reader takes a file that ends within a frame for a whole one.
    """

    def __init__(self, zstandard: Any, file: BufferedReader, where: str) -> None:
        self._zstandard, self._file, self._where = zstandard, file, where
        self._frame: Any = None
        self._packed = b""
        self._ready = b""

    def buffered(self) -> BinaryIO:
        return io.BufferedReader(self, 2**20)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            self._packed = self._packed or self._file.read(2**17)
            if not self._packed:
                if self._frame is not None:
                    raise self._damaged()
                return 0
            self._ready = self._decompressed()
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def _decompressed(self) -> bytes:
        if self._frame is None:
            self._frame = self._zstandard.ZstdDecompressor().decompressobj()
        try:
            ready: bytes = self._frame.decompress(self._packed)
        except self._zstandard.ZstdError:
            raise self._damaged() from None
        self._packed = self._frame.unused_data if self._frame.eof else b""
        if self._frame.eof:
            self._frame = None
        return ready

    def _damaged(self) -> InputError:
        return InputError(
            "the zstd file is damaged or cut off", where=self._where, remedy="fetch it again"
        )


def _zstandard(where: str) -> Any:
    try:
        import zstandard
    except ImportError:
        raise InputError(
            "files packed by zstd need the package zstandard",
            where=where,
            remedy="pip install 'servefront[zstd]', or unpack the file with `zstd -d`",
        ) from None
    return zstandard


def _decoded(stream: BinaryIO, where: str, remedy: str) -> Iterator[tuple[int, str]]:
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
