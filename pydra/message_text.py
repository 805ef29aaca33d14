"""How messages say "did you mean", and how they write seconds and long lists."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def format_seconds(seconds: float) -> str:
    """Format seconds for messages: `40` for 39.98, `0.3`."""
    return f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.2g}"


def list_names(names: Sequence[str], most: int = 4) -> str:
    """Return `a, b, c and 24 more`."""
    left = len(names) - most
    return ", ".join(names[:most]) + (f" and {left} more" if left > 0 else "")


def find_similar(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return the known word that this one may be a misspelling of; empty if none is close."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[close[0]] if close else ""


def suggest(word: str, known: Iterable[str], *, prefix: str = "") -> str:
    """` (did you mean "x"?)` when one of the known words is close, else nothing.

    `prefix` starts all of them, and is not compared: it would make all of them close.
    """
    similar = find_similar(word.removeprefix(prefix), (one.removeprefix(prefix) for one in known))
    return format_suggestion(f"{prefix}{similar}") if similar else ""


def format_suggestion(text: str) -> str:
    """Return ` (did you mean "text"?)`."""
    return f' (did you mean "{text}"?)'
