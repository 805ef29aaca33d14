"""Helpers that build CEL expressions as strings.

Literals, field paths, problems, and Python's regular expressions translated to RE2, which CEL uses. A check is an
expression of type string, which is empty if there is no problem. Sources: the CEL language definition;
k8s.io/apiserver/pkg/cel/environment for the libraries of Kubernetes 1.34, whose expressions are those of 1.33:
strings, two-variable comprehensions, quantities, optional values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from textwrap import indent

import msgspec

from pydra.backends.type_mismatches import MAX_SHOWN

_WHOLE = "9007199254740992.0"
"""2 to the 53rd, below which a double can have a fraction: JSON's 1500.0 is not an integer, but a text of `1500` is."""

NOTHING = '""'
"""The check that always succeeds."""


def quote(text: str) -> str:
    """Return a string literal; JSON's escapes are CEL's too."""
    return json.dumps(text, ensure_ascii=False)


def literal(value: object) -> str:
    """Return a literal of a JSON scalar. Integers fit: msgspec accepts no bounds beyond 64 bits."""
    match value:
        case None:
            return "null"
        case int() | float():
            return repr(value)
        case _:
            return quote(str(value))


class Path(msgspec.Struct, frozen=True):
    """Where a value is, as a string expression: what is known when the policy is written, and what only when it runs.

    `parts` are literals and expressions by turns, beginning with an expression.
    """

    parts: tuple[str, ...]

    def then(self, text: str) -> Path:
        """Return the path with a literal text."""
        if len(self.parts) % 2:
            return Path((*self.parts, text))
        return Path((*self.parts[:-1], self.parts[-1] + text))

    def then_cel(self, expression: str) -> Path:
        """Return the path with the value of an expression."""
        return Path((*(self.parts if len(self.parts) % 2 == 0 else (*self.parts, "")), expression))


def problem(path: Path) -> str:
    """Return one problem: the path and its text. One `format` is checked faster than many `+`, which have overloads."""
    text = "".join(part.replace("%", "%%") if index % 2 else "%s" for index, part in enumerate(path.parts))
    return f"{quote(f'; {text}')}.format([{', '.join(path.parts[::2])}])"


def show(value: str) -> str:
    """Show a value in the form of `type_mismatches.show`; `value` is an expression that is cheap to evaluate twice."""
    return (
        f"(type({value}) == string ? {show_text(value)}"
        f' : type({value}) == map ? "an object"'
        f' : type({value}) == list ? "a list of " + string(size({value}))'
        f" : type({value}) == double && {value} > -{_WHOLE} && {value} < {_WHOLE} && {value} == double(int({value}))"
        f' ? string(int({value})) + ".0"'
        f' : "%s".format([{value}]))'
    )


def show_text(value: str) -> str:
    """Show a value that is certainly a string, such as a key."""
    short = f'{value}.substring(0, {MAX_SHOWN - 1}) + "..."'
    return f'"\\"" + (size({value}) > {MAX_SHOWN - 2} ? {short} : {value} + "\\"")'


def member(path: Path, key: str) -> Path:
    """Return the path to the member that the expression `key` names."""
    plain = f'{key}.matches("^[A-Za-z_][\\\\p{{L}}\\\\p{{N}}_]*$")'
    return path.then_cel(f'({plain} ? "." + {key} : "[" + {show_text(key)} + "]")')


def choose(condition: str, then: str, otherwise: str) -> str:
    """`condition ? then : otherwise`, over several lines."""
    return f"({condition}\n  ? {_hang(then)}\n  : {_hang(otherwise)})"


def let(name: str, value: str, check: str) -> str:
    """Return the check, with a short name for a value. CEL in policies has no `bind`."""
    return check if check == NOTHING else f"[{value}].map({name},\n{indent(check, '  ')}\n)[0]"


def gather(checks: Sequence[str]) -> str:
    """Build the check that reports the problems of several checks."""
    found = [check for check in checks if check != NOTHING]
    if len(found) < 2:
        return found[0] if found else NOTHING
    if len(found) == 2:  # as of a map's key and value: a list for each entry would cost a third of the budget
        return "\n+ ".join(found)
    return "[\n" + ",\n".join(indent(check, "  ") for check in found) + '\n].join("")'


def for_each(value: str, names: str, check: str) -> str:
    """Return the check for every entry of a list or map, `names` being those of its key and its value there."""
    if check == NOTHING:
        return NOTHING
    return f'{value}.transformList({names},\n{indent(check, "  ")}\n).join("")'


def _hang(text: str) -> str:
    return text.replace("\n", "\n    ")


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
    """Translate the pattern to RE2, matching anywhere as in Python; None if that is not possible."""
    translated: list[str] = []
    in_brackets = False
    for token in _TOKEN.finditer(pattern):
        one = _translate(token, in_brackets=in_brackets)
        if one is None:
            return None
        translated.append(one)
        if token["other"] == "[" and not in_brackets:
            in_brackets = True
        elif token["other"] == "]" and in_brackets and not re.search(r"(^|[^\\])\[\^?$", pattern[: token.start()]):
            in_brackets = False
    return "".join(translated)


def _translate(token: re.Match[str], *, in_brackets: bool) -> str | None:
    if token["escape"] is not None:
        return _translate_escape(token["escape"], in_brackets=in_brackets)
    if in_brackets:
        return None if token["group"] or token["other"] == "[" else token[0]  # [[:alpha:]] means another thing there
    if token["repeat"]:
        counts = [int(count) for count in re.findall(r"\d+", token["repeat"])]
        fits = counts and max(counts) <= _MOST_REPEATS and not token[0].startswith("{,")
        return token[0] if fits else None
    if token["other"] == "$":
        return r"\z"
    possessive = token["other"] == "+" and re.search(r"[*+?}]$", token.string[: token.start()])
    return None if token["group"] or possessive else token[0]  # a group with look-around, flags or a name


def _translate_escape(escape: str, *, in_brackets: bool) -> str | None:
    if escape in _CLASSES:
        return _CLASSES[escape][in_brackets]
    same = escape in _SAME_ESCAPES or not (escape.isalnum() or escape == "_")
    return f"\\{escape}" if same else None
