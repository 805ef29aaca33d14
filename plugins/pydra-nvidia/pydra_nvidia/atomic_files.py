"""Files that are replaced at once: who reads one never sees half of it."""

from __future__ import annotations

import os
from contextlib import suppress


def replace_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Write all of it or nothing. Raises OSError."""
    draft = f"{path}.{os.getpid()}"
    try:
        with open(draft, "wb") as file:
            file.write(data)
        os.replace(draft, path)
    except OSError:
        with suppress(OSError):
            os.unlink(draft)
        raise
