"""Replaces a small file of an operator's: its settings or its accounts."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def replace_file(path: Path, text: str, encoding: str = "utf-8") -> None:
    """Replace a small file in one step that survives power loss; it keeps its mode. Raises OSError.

    The temporary file is readable by nobody else, since secrets may be in it.
    """
    path = path.resolve()  # a link goes on pointing at the file
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding=encoding) as file:
            if path.exists():
                os.fchmod(file.fileno(), path.stat().st_mode & 0o777)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)  # noqa: PTH105 - the pair of mkstemp
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
