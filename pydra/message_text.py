"""How messages say "did you mean", how they write seconds and long lists, and how they show text from elsewhere.

That is a backend's messages, names in claims, a server's answers. A backend's process is not trusted to limit or escape
what it sends, so both happen in the agent. A line break would begin a line that looks like one of the agent's, and an
escape character commands the terminal that shows the log.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

UNSAFE = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")
"""Control characters, line breaks, changes of direction (which hide or reorder text), and halves of characters."""


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


# Text from elsewhere


def cut(text: str, limit: int) -> str:
    """Cut the text to `limit` characters; one that was cut ends in `...`."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def cut_bytes(text: str, limit: int) -> str:
    """Cut the text to `limit` bytes of UTF-8; one that was cut ends in `...`, and its characters are whole."""
    encoded = text.encode()
    return text if len(encoded) <= limit else encoded[: limit - 3].decode(errors="ignore") + "..."


def encodable(text: str) -> str:
    """Escape halves of characters, which UTF-8 cannot encode."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def escape(text: str, *, keep: str = "") -> str:
    r"""Write characters that a terminal or a reader of lines acts on as `\n`, `\x1b`, `\u2028`; `keep` stay."""
    return UNSAFE.sub(lambda found: found[0] if found[0] in keep else ascii(found[0])[1:-1], text)
