"""Python's regular expressions in RE2, which is CEL's, where they mean the same; None where that is not sure. Pure."""

from __future__ import annotations

import re

# In a Python str these classes are Unicode's; in RE2 they are ASCII's. (outside of brackets, inside of them)
_CLASSES = {
    "d": (r"\p{Nd}", r"\p{Nd}"),
    "w": (r"[\p{L}\p{N}_]", r"\p{L}\p{N}_"),
    "s": (r"[\s\x0b\x1c-\x1f\x85\p{Z}]", r"\s\x0b\x1c-\x1f\x85\p{Z}"),
}
_SAME_ESCAPES = frozenset("tnrfv")
_TOKEN = re.compile(r"\\(?P<escape>.)|(?P<group>\(\?(?!:))|(?P<repeat>\{\d*,?\d*\})|(?P<other>.)", re.DOTALL)
_MOST_REPEATS = 1000
"""RE2 refuses more."""


def translate_pattern(pattern: str) -> str | None:
    """The same language in RE2, searched for anywhere, as in Python; None when it cannot be told."""
    translated: list[str] = []
    in_brackets = False
    for token in _TOKEN.finditer(pattern):
        one = _translate(token, in_brackets=in_brackets, rest=pattern[token.end() :])
        if one is None:
            return None
        translated.append(one)
        if token["other"] == "[" and not in_brackets:
            in_brackets = True
        elif token["other"] == "]" and in_brackets and not re.search(r"(^|[^\\])\[\^?$", pattern[: token.start()]):
            in_brackets = False
    return "".join(translated)


def _translate(token: re.Match[str], *, in_brackets: bool, rest: str) -> str | None:
    if token["escape"] is not None:
        return _translate_escape(token["escape"], in_brackets=in_brackets)
    if in_brackets:
        return None if token["group"] or token["other"] == "[" else token[0]  # [[:alpha:]] means another thing there
    if token["repeat"]:
        counts = [int(count) for count in re.findall(r"\d+", token["repeat"])]
        fits = counts and max(counts) <= _MOST_REPEATS and not token[0].startswith("{,")
        return token[0] if fits else None
    if token["other"] == "$":  # in Python also before a newline at the end
        return r"\n?\z" if re.match(r"\)*($|\|)", rest) else None
    possessive = token["other"] == "+" and re.search(r"[*+?}]$", token.string[: token.start()])
    return None if token["group"] or possessive else token[0]  # a group with look-around, flags or a name


def _translate_escape(escape: str, *, in_brackets: bool) -> str | None:
    if escape in _CLASSES:
        return _CLASSES[escape][in_brackets]
    same = escape in _SAME_ESCAPES or not (escape.isalnum() or escape == "_")
    return f"\\{escape}" if same else None
