"""Records the machine: reads it through a guard, makes the scenario, and reads that back to see what it kept.

The file is YAML without what is the default, and above it what a reader of a recording has to know. The names of the
machine's products are in it, of the machine itself nothing.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any

import msgspec
from msgspec.structs import replace

from pydra import PydraError
from pydra_nvidia.hardware_reader import HardwareReader, read_without_driver
from pydra_nvidia.hardware_types import Reading
from pydra_nvidia.host.driver_root import DriverMissing
from pydra_nvidia.nvml.errors import Code, code_name
from pydra_nvidia.nvml.library import Nvml
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.settings import Settings, parse_settings
from pydra_nvidia.simulation.recording.anonymise import Names
from pydra_nvidia.simulation.recording.gpus import GpuRecord, read_failing, read_record
from pydra_nvidia.simulation.recording.host import Slot, read_driver_part, read_host, read_slots
from pydra_nvidia.simulation.recording.read_only_guard import CallLog, ReadOnlyTree, guard
from pydra_nvidia.simulation.recording.scenario import Seen, build_scenario
from pydra_nvidia.simulation.scenario import Scenario
from pydra_nvidia.simulation.scenario_file import bundled_model, bundled_models, parse_scenario
from pydra_nvidia.simulation.simulation import Simulation, open_simulation
from pydra_pci import Tree

KEPT_SETTINGS = ("dynamic_mig", "orphans", "time_slicing", "mps", "consumable_shares", "vfio", "health", "signals")
"""What is published depends on them; paths and times are of the machine."""


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """`text` is the file. `differences` are what the recorded machine had and the simulated one has not."""

    text: str
    scenario: Scenario
    differences: tuple[str, ...]


class RecordingFailed(PydraError):
    """The machine told what no scenario can say."""

    retryable = False
    reason = "RecordingFailed"


async def record(
    settings: Settings, tree: Tree, load: Callable[[], ModuleType], *, salt: bytes, day: datetime.date
) -> Recording:
    """The node's hardware as a scenario. Nothing of it is changed: `read_only_guard` lets nothing else through.

    Raises:
        NvmlError: NVML as a whole does not answer.
        RecordingFailed: the machine told what no scenario can say.
    """
    names, log = Names(salt), CallLog()
    seen = await read_machine(settings, ReadOnlyTree(tree), guard(load, log), log)
    bundled = [bundled_model(name, "the package") for name in bundled_models()]
    scenario = build_scenario(seen, names, bundled)
    _check(scenario)
    differences = find_differences(names.reading(seen.reading), await read_back(scenario))
    return Recording(
        text=write_scenario(scenario, tuple(describe(scenario, log, day, differences))),
        scenario=scenario,
        differences=differences,
    )


async def read_machine(settings: Settings, tree: Tree, load: Callable[[], ModuleType], log: CallLog) -> Seen:
    """All of it. What passthrough needs is always among it."""
    kept = _kept(settings)
    settings = replace(settings, vfio=True)
    session = NvmlSession(load)
    try:
        reading = await _read(session, tree, settings)
        slots = await asyncio.to_thread(read_slots, tree, tuple(reading.functions.values()))
        records = await session.run(lambda nvml: _read_records(nvml, reading, slots, log)) if reading.driver else ()
    finally:
        session.close()
    driver = await asyncio.to_thread(read_driver_part, tree, settings, log.missing)
    if reading.driver is not None:
        driver = replace(driver, version=reading.driver.version, cuda=reading.driver.cuda, state="loaded")
    host = await asyncio.to_thread(read_host, tree, settings, reading.functions.values(), reading.vfio)
    return Seen(reading=reading, driver=driver, host=host, slots=slots, records=records, settings=kept)


async def read_back(scenario: Scenario) -> Reading:
    """What the scenario's machine tells, in a place of its own that is removed again."""
    with tempfile.TemporaryDirectory(prefix="pydra-nvidia-") as place:
        simulation = await asyncio.to_thread(_open, scenario, place)
        session = NvmlSession(simulation.load)
        try:
            return await _read(session, simulation.tree, parse_settings({}, {**simulation.settings, "vfio": True}))
        finally:
            session.close()


def _open(scenario: Scenario, place: str) -> Simulation:
    path = os.path.join(place, "recording.yaml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(write_scenario(scenario, ()))
    return open_simulation(path, os.path.join(place, "machine"))


async def _read(session: NvmlSession, tree: Tree, settings: Settings) -> Reading:
    """A reading; without a driver it has what the kernel tells."""
    static = replace(settings, dynamic_mig=False)  # whether partitions can be made says nothing of what is there
    try:
        return await HardwareReader(session, tree, settings=static).read()
    except DriverMissing:
        return await asyncio.to_thread(read_without_driver, tree)


def _read_records(nvml: Nvml, reading: Reading, slots: tuple[Slot, ...], log: CallLog) -> tuple[GpuRecord, ...]:
    pci = {slot.function.address: slot.pci for slot in slots}
    records = [read_record(nvml, gpu, pci[gpu.pci], log) for gpu in reading.gpus if gpu.pci in pci and not gpu.unread]
    unread = (gpu.index for gpu in reading.gpus if gpu.unread)
    failing = (read_failing(nvml, index, pci, log) for index in (*unread, *(one.index for one in reading.lost)))
    return tuple(sorted((*records, *filter(None, failing)), key=lambda one: one.gpu.pci))


def _kept(settings: Settings) -> Mapping[str, Any]:
    defaults = Settings()
    values: dict[str, Any] = msgspec.to_builtins(settings)
    return {name: values[name] for name in KEPT_SETTINGS if getattr(settings, name) != getattr(defaults, name)}


def _check(scenario: Scenario) -> None:
    try:
        parse_scenario(msgspec.json.encode(plain(scenario)), "of this machine")
    except PydraError as error:
        raise RecordingFailed(
            f"the machine tells what no scenario can say: {error}. This is a defect of pydra-nvidia; please report it"
        ) from error


def find_differences(recorded: Reading, back: Reading) -> tuple[str, ...]:
    """`gpus[3].links.up: 18, reads back as 0`, for each field.

    Of a GPU that does not answer the error counts, not in which of NVML's calls it came: it is recorded for the first.
    Of one that is read partly it counts that it is.
    """
    return tuple(_compare("", _comparable(recorded), _comparable(back)))


def _comparable(reading: Reading) -> Any:
    lost = tuple(replace(one, message="") for one in reading.lost)
    gpus = tuple(replace(one, unread="yes" if one.unread else "") for one in reading.gpus)
    return msgspec.to_builtins(replace(reading, lost=lost, gpus=gpus))


def _compare(path: str, one: Any, other: Any) -> Iterator[str]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in {**one, **other}:
            yield from _compare(f"{path}.{key}" if path else key, one.get(key, "nothing"), other.get(key, "nothing"))
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for number, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            yield from _compare(f"{path}[{number}]", mine, theirs)
    elif one != other:
        yield f"{path}: {_short(one)}, reads back as {_short(other)}"


def _short(value: Any) -> str:
    return f"{len(value)} of them" if isinstance(value, list | tuple | Mapping) else str(value)


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
