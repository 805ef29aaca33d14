"""Field and label selectors: parse once, match often. Pure.

A selector is a tuple of requirements that must all hold. Source: apimachinery `pkg/fields` and
`pkg/labels`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from pydra_dev.api.errors import JsonObject, bad_request
from pydra_dev.api.kinds import EVENTS, NEW_EVENTS, NODES, PODS, Kind

Matcher: TypeAlias = Callable[[JsonObject], bool]

_ALWAYS = ("metadata.name", "metadata.namespace")
_SET = re.compile(r"\s*([^\s,()!=]+)\s+(in|notin)\s+\(([^()]*)\)\s*")
_EQUALITY = re.compile(r"\s*([^\s,()!=]+)\s*(==|=|!=)\s*([^\s,()!=]*)\s*")
_EXISTS = re.compile(r"\s*(!?)\s*([^\s,()!=]+)\s*")


class Requirement(msgspec.Struct, frozen=True, kw_only=True):
    """One condition on one key; `values` empty: on the key's presence."""

    key: str
    values: tuple[str, ...] = ()
    wanted: bool = True

    def holds(self, value: str | None) -> bool:
        """Whether a value (None: the key is absent) satisfies the requirement."""
        found = value is not None if not self.values else value in self.values
        return found is self.wanted


def build_matcher(kind: Kind, field_selector: str, label_selector: str) -> Matcher:
    """One function for both selectors; raises a 400 StatusError for what the kind does not know."""
    fields = parse_field_selector(kind, field_selector)
    labels = parse_label_selector(label_selector)

    def matches(obj: JsonObject) -> bool:
        own = obj["metadata"].get("labels") or {}
        return all(r.holds(own.get(r.key)) for r in labels) and all(
            r.holds(read_field(kind, obj, r.key)) for r in fields
        )

    return matches


def parse_field_selector(kind: Kind, text: str) -> tuple[Requirement, ...]:
    """`spec.driver=x,metadata.name!=y`; an empty value means that the field is not set."""
    requirements = []
    for term in filter(None, text.split(",")):
        match = re.fullmatch(r"([^!=]+)(==|=|!=)([^!=]*)", term)
        if match is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{term}'")
        key, operator, value = match.groups()
        if key not in _ALWAYS and key not in kind.selectable:
            raise bad_request(f"field label not supported for {kind.api_version}, Kind={kind.kind}: {key}")
        requirements.append(Requirement(key=key, values=(value,), wanted=operator != "!="))
    return tuple(requirements)


def parse_label_selector(text: str) -> tuple[Requirement, ...]:
    """`a=b,c!=d,e in (f,g),h,!i`."""
    requirements = []
    for term in filter(None, (part.strip() for part in re.split(r",(?![^()]*\))", text))):
        if match := _SET.fullmatch(term):
            values = tuple(value.strip() for value in match[3].split(","))
            requirements.append(Requirement(key=match[1], values=values, wanted=match[2] == "in"))
        elif match := _EQUALITY.fullmatch(term):
            requirements.append(Requirement(key=match[1], values=(match[3],), wanted=match[2] != "!="))
        elif match := _EXISTS.fullmatch(term):
            requirements.append(Requirement(key=match[2], wanted=not match[1]))
        else:
            raise bad_request(f"unable to parse requirement: found {term!r} in label selector {text!r}")
    return tuple(requirements)


def read_field(kind: Kind, obj: JsonObject, path: str) -> str:
    """The field's value as a selector compares it; a field that is not set is the empty string."""
    if kind in {EVENTS, NEW_EVENTS}:
        path = "source.component" if path == "source" else path.replace("regarding", "involvedObject")
    if kind == NODES and path == "spec.unschedulable":
        return "true" if obj.get("spec", {}).get("unschedulable") else "false"
    if kind == PODS and path == "status.podIP":
        return str(obj.get("status", {}).get("podIP", ""))
    if path == "name":
        path = "metadata.name"
    value: Any = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return "" if value is None else str(value)
