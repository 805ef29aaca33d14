"""Why a CEL selector does not match a device, for people: what the device has of what the selector reads. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydra.message_text import list_names, suggest
from pydra_dev.api import schema

_MOST_NAMES = 8
_READS = re.compile(
    r"""device\.(?P<kind>attributes|capacity)\[\s*["'](?P<domain>[^"']+)["']\s*\]\s*"""
    r"""(?:\.\??(?P<name>\w+)|\[\s*\??\s*["'](?P<quoted>[^"']+)["']\s*\])"""
)


def describe_values(expression: str, driver: str, device: schema.Device) -> str:
    """`model is x1, no attribute modle (did you mean "model"?)`; empty if the expression names nothing it reads."""
    texts = [f"driver is {driver}"] if "device.driver" in expression else []
    for kind, domain, name in _find_reads(expression):
        known = _read_values(driver, device, kind, domain)
        absent = f"no {'capacity' if kind == 'capacity' else 'attribute'} {name}{suggest(name, known)}"
        texts.append(f"{name} is {known[name]}" if name in known else absent)
    return ", ".join(dict.fromkeys(texts))


def suggest_name(error: str, expression: str, driver: str, device: schema.Device) -> str:
    """` (did you mean "model"?)` for the name in `no such key: modle`, or which names there are if none is close.

    For a domain of which the device has nothing: ` of domain x (did you mean "y"?)`; empty for another error.
    """
    for kind, domain, name in _find_reads(expression):
        known = _read_values(driver, device, kind, domain)
        if name in known or not error.endswith(f"no such key: {name}"):
            continue
        if not known:
            return f" of domain {domain}{suggest(domain, _find_domains(driver, device))}"
        return suggest(name, known) or f" (of {domain} it has {list_names(sorted(known), _MOST_NAMES)})"
    return ""


def _find_domains(driver: str, device: schema.Device) -> set[str]:
    """The domains of the names that a device has."""
    return {name.partition("/")[0] if "/" in name else driver for name in (*device.attributes, *device.capacity)}


def _find_reads(expression: str) -> Iterator[tuple[str, str, str]]:
    for found in _READS.finditer(expression):
        yield found["kind"], found["domain"], found["name"] or found["quoted"]


def _read_values(driver: str, device: schema.Device, kind: str, domain: str) -> dict[str, str]:
    """The attributes or capacities of a domain, as text."""
    if kind == "capacity":
        texts = {name: str(one.value) for name, one in device.capacity.items()}
    else:
        texts = {name: _show(one) for name, one in device.attributes.items()}
    qualified = {name if "/" in name else f"{driver}/{name}": text for name, text in texts.items()}
    return {name.removeprefix(f"{domain}/"): text for name, text in qualified.items() if name.startswith(f"{domain}/")}


def _show(attribute: schema.Attribute) -> str:
    (value,) = schema.build_fields(attribute).values() or ("",)
    return str(value).lower() if isinstance(value, bool) else str(value)
