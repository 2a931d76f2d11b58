"""Files that are either the old ones or the new ones, whenever the process is killed."""

from __future__ import annotations

import os
from pathlib import Path

from spaces.errors import InputError


def write_atomically(path: Path, content: str | bytes) -> None:
    """Put `content` in place of the file at once; missing folders are made.

    Text is written as UTF-8. A place that cannot be written is an `InputError`.
    """
    data = content.encode() if isinstance(content, str) else content
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            draft.write_bytes(data)
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            f"the file cannot be written ({error.strerror})", where=str(path)
        ) from None
