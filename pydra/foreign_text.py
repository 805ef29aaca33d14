"""Makes text from elsewhere safe to show: a backend's messages, names in claims, a server's answers.

A backend's process is not trusted to limit or escape what it sends, so both happen in the agent. A line break would
begin a line that looks like one of the agent's, and an escape character commands the terminal that shows the log.
"""

from __future__ import annotations

import re

_UNSAFE = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")
"""Control characters, line breaks, changes of direction (which hide or reorder text), and halves of characters."""


def cut(text: str, limit: int) -> str:
    """Cut the text to `limit` characters; one that was cut ends in `...`."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def encodable(text: str) -> str:
    """Escape halves of characters, which UTF-8 cannot encode."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def escape(text: str, *, keep: str = "") -> str:
    r"""Write characters that a terminal or a reader of lines acts on as `\n`, `\x1b`, `\u2028`; `keep` stay."""
    return _UNSAFE.sub(lambda found: found[0] if found[0] in keep else ascii(found[0])[1:-1], text)


def escape_json(document: bytes) -> bytes:
    """Escape such characters in a JSON document without white space; JSON itself demands it of a few only."""
    if document.isascii() and b"\x7f" not in document:
        return document
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", document.decode()).encode()
