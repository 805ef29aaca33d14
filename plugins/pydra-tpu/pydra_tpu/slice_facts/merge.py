"""Decides what is known of the slice: what the sources tell, as far as the chips and the other sources agree.

Nothing is guessed. What contradicts the chips is ignored; where sources contradict each other, the settings win, and
else none is believed. Each contradiction gets a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from pydra_tpu.generations import Generation
from pydra_tpu.geometry import HOST_BOUNDS, Bounds, divide_bounds, format_topology
from pydra_tpu.hardware_types import Chip, SliceFacts
from pydra_tpu.slice_facts.parse import SETTINGS, SourceFacts

CHIPS: Final = "the chips"
REMEDY: Final = "set it in the settings of pydra-tpu"
CORRECTION: Final = "correct it, or leave it out"


class Fact(NamedTuple):
    """A value, and which source it is from."""

    value: Any
    source: str


def merge_facts(told: Sequence[SourceFacts], chips: Sequence[Chip]) -> tuple[SliceFacts, tuple[str, ...]]:
    """The facts of a host with these chips, and a text for each value that is not used.

    `told` is in the order in which sources are believed. A machine without chips, or with chips of several
    generations, has no slice.
    """
    problems = [text for one in told for text in one.unusable]
    if len({chip.generation.name for chip in chips}) != 1:
        return SliceFacts(), tuple(problems)
    generation = chips[0].generation
    problems += [_describe_lie(one, generation) for one in told if one.generation not in (None, generation)]
    believed = [one for one in told if one.generation in (None, generation)]
    facts: dict[str, Fact] = {}
    for name in (*SliceFacts.__struct_fields__, "accelerator_type"):
        fact, problem = _choose(name, believed, generation)
        facts |= {name: fact} if fact else {}
        problems += [problem] if problem else []
    if (kind := facts.pop("accelerator_type", None)) and "accelerator" not in facts:
        facts["accelerator"] = Fact(generation.labels[0], kind.source)  # as Google's driver calls it
    if len(generation.labels) == 1:
        facts.setdefault("accelerator", Fact(generation.labels[0], CHIPS))
    if len(chips) in HOST_BOUNDS:
        whole = generation.host_bounds(len(chips))
        told_type = any(one.accelerator_type for one in believed)
        if all(one.topology is None for one in believed) and bool(kind) == told_type:
            facts |= _find_lone_host(facts, kind, generation, whole)
        topology = facts["topology"].value if "topology" in facts else None
        wrong = _find_contradictions(facts, kind, generation, generation.host_bounds(len(chips), topology))
        problems += dict.fromkeys(wrong.values())
        facts = {name: fact for name, fact in facts.items() if name not in wrong}
    return SliceFacts(
        **{name: fact.value for name, fact in facts.items()},
        sources={name: fact.source for name, fact in facts.items()},
    ), tuple(problems)


def _describe_lie(told: SourceFacts, generation: Generation) -> str:
    named = told.generation.product if told.generation else ""
    text = f"by {told.source} the chips of this machine are {named}, but they are {generation.product}"
    return f"{text}: nothing from there is used"


def _choose(name: str, believed: Sequence[SourceFacts], generation: Generation) -> tuple[Fact | None, str]:
    """The fact that the sources agree on, or a text that says how they do not."""
    facts = [Fact(value, one.source) for one in believed if (value := getattr(one, name)) not in (None, (), {})]
    first = next(iter(facts), None)
    other = next((one for one in facts if first and one.value != first.value), None)
    if first is None or other is None or first.source == SETTINGS or name == "slice_name":
        return first, ""  # hosts of a slice may have its name from any source, so long as it is the same one
    one, another = (f"{_format(fact.value, generation)} by {fact.source}" for fact in (first, other))
    return None, f"{name} is {one} and {another}: neither is used; {REMEDY}"


def _find_lone_host(
    facts: Mapping[str, Fact], kind: Fact | None, generation: Generation, whole: Bounds
) -> Mapping[str, Fact]:
    """The topology of a host that is a slice by itself; nothing as long as it may be one of several.

    Source: Google Cloud's and GKE's pages: hosts of one, two and eight chips are slices by themselves.
    """
    if kind and kind.value == generation.accelerator_type(whole.size):
        return {"topology": Fact(whole, kind.source)}
    workers = facts.get("worker_hostnames", Fact((), CHIPS)).value
    has_others = len(workers) > 1 or facts.get("worker_id", Fact(0, CHIPS)).value > 0
    if kind or has_others or whole.size not in (1, 2, 8):
        return {}
    return {"topology": Fact(whole, CHIPS)}


def _find_contradictions(
    facts: Mapping[str, Fact], kind: Fact | None, generation: Generation, whole: Bounds
) -> Mapping[str, str]:
    """By their names, the facts that cannot be of a host with these chips, and why."""
    if (count := facts.get("host_chips")) and count.value != whole.size:
        return {}  # no chip is offered at all
    topology, bounds = facts.get("topology"), facts.get("host_bounds")
    if topology is None:
        return {}
    shape = f"topology {_format(topology.value, generation)} by {topology.source}"
    if (hosts := divide_bounds(topology.value, whole)) is None or (generation.dimensions == 2 and topology.value.z > 1):
        text = f"{shape} cannot be formed by {generation.product} hosts (chips of each: {whole.size})"
        remedy = CORRECTION if topology.source == SETTINGS else REMEDY
        return {"topology": f"{text}: it is ignored; {remedy}"}
    if (
        kind
        and topology.source != SETTINGS
        and kind.value != (expected := generation.accelerator_type(topology.value.size))
    ):
        text = f"{shape} is a {expected}, but by {kind.source} this is a {kind.value}"
        return {"topology": f"{text}: it is ignored; {REMEDY}"}
    if bounds and bounds.value != hosts:
        text = f"{shape} has {hosts} hosts (chips of each: {whole.size}), but by {bounds.source} it has {bounds.value}"
        if topology.source == SETTINGS:
            return {"host_bounds": f"{text}: the settings are used"}
        return dict.fromkeys(("topology", "host_bounds"), f"{text}: neither is used; {REMEDY}")
    wrong = {}
    if (worker := facts.get("worker_id")) and worker.value >= hosts.size:
        wrong["worker_id"] = f"worker_id {worker.value} by {worker.source} is ignored; hosts: {hosts.size}"
    if (names := facts.get("worker_hostnames")) and len(names.value) != hosts.size:
        found = f"their number is {len(names.value)}, that of hosts {hosts.size}"
        text = f"worker_hostnames by {names.source} are ignored: {found}"
        wrong["worker_hostnames"] = text
    return wrong


def _format(value: Any, generation: Generation) -> str:
    if not isinstance(value, Bounds):
        return str(value)[:64]
    return format_topology(value, generation.dimensions if value.z == 1 else 3)
