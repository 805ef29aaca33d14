"""A scenario as a file: YAML without what is the default, and above it what a reader of a recording has to know. Pure.

The names of the machine's products are in it, of the machine itself nothing.
"""

from __future__ import annotations

import datetime
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from pydra_nvidia.nvml.errors import Code, code_name
from pydra_nvidia.recording.read_only import CallLog
from pydra_nvidia.simulation.scenario import Scenario

WIDTH = 116
_MOST_DIFFERENCES = 20


def write_scenario(scenario: Scenario, head: Sequence[str]) -> str:
    """The whole file; `head` are the paragraphs of its comment."""
    import yaml  # noqa: PLC0415 - 4 MiB that only a recording pays for

    lines = [f"# {line}" for paragraph in head for line in textwrap.wrap(paragraph, WIDTH, subsequent_indent="  ")]
    body = yaml.dump(plain(scenario), Dumper=yaml.SafeDumper, sort_keys=False, default_flow_style=None, width=WIDTH)
    return "\n".join(lines) + "\n" + str(body)


def describe(scenario: Scenario, log: CallLog, day: datetime.date, differences: Sequence[str]) -> Iterator[str]:
    """The paragraphs."""
    yield (
        f"A machine with NVIDIA GPUs, recorded by pydra-nvidia on {day.isoformat()}, without changing anything. UUIDs, "
        "serial numbers and fabric clusters are made up: neither they nor the machine's name can be found from here."
    )
    counts = Counter[str]()
    for group in scenario.gpus:
        counts[scenario.models[group.model].name] += group.count
    gpus = ", ".join(f"{count} x {name}" for name, count in counts.items()) or "no GPUs"
    cuda = f", CUDA {scenario.driver.cuda // 1000}.{scenario.driver.cuda % 1000 // 10}" if scenario.driver.cuda else ""
    yield f"Driver {scenario.driver.version} ({scenario.driver.state}){cuda}: {gpus}."
    yield f"NVML answered {sum(log.answers.values())} calls. Refused: {', '.join(_refusals(log)) or 'none'}."
    if log.missing:
        yield f"Its library has no {', '.join(sorted(log.missing))}."
    if not differences:
        yield "Read back from this file, the machine is the same."
        return
    yield "Read back from this file, the machine is not quite the same:"
    yield from (f"- {line}" for line in differences[:_MOST_DIFFERENCES])
    if len(differences) > _MOST_DIFFERENCES:
        yield f"- and {len(differences) - _MOST_DIFFERENCES} more"


def plain(value: Any) -> Any:
    """As YAML has it; fields with their default are left out."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(one) for name, one in _fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    return value


def _fields(value: msgspec.Struct) -> Iterable[tuple[str, Any]]:
    for field in _fields_of(type(value)):
        mine = getattr(value, field.name)
        made = field.default_factory
        if mine != (field.default if made is msgspec.NODEFAULT else made()):
            yield field.encode_name, mine


_fields_of = cache(msgspec.structs.fields)  # it evaluates all annotations anew, for each of a thousand values


def _refusals(log: CallLog) -> list[str]:
    counts = Counter[tuple[str, str]]()
    for answer, count in log.answers.items():
        if answer.code != Code.SUCCESS:
            counts[answer.symbol, code_name(answer.code)] += count
    return [f"{symbol} {code} ({count}x)" for (symbol, code), count in sorted(counts.items())]
