"""Checks CDI spec files of any driver for what runtimes refuse; for `pydra cdi validate` and `pydra doctor`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from pydra.atomic_files import read_regular_file
from pydra.cdi.edit_rules import find_edit_problems
from pydra.cdi.edits import ContainerEdits
from pydra.cdi.spec import EditsDocument, SpecDocument, find_lowest_version
from pydra.cdi.store import MAX_BYTES
from pydra.diagnosis import Finding, Level
from pydra.yaml_documents import NotYaml, decode_yaml

SUFFIXES = (".json", ".yaml")
"""Of the files that runtimes read."""

VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
"""Versions of the specification that the runtimes in use read."""

_KIND = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")


def check_spec_file(path: str) -> Iterator[Finding]:
    """Yield what is wrong with a file, or that a runtime takes it."""
    if not path.endswith(SUFFIXES):
        yield Finding(path, Level.PROBLEM, f"the name must end in {' or '.join(SUFFIXES)}; runtimes read no other file")
    problems = _find_problems(path)
    if not problems:
        yield Finding(path, Level.OK, "a valid CDI spec")
    for problem in problems:
        yield Finding(path, Level.PROBLEM, problem)


def _find_problems(path: str) -> tuple[str, ...]:
    try:
        content = read_regular_file(path, MAX_BYTES)
    except OSError as error:
        return (f"cannot be read: {(error.strerror or str(error)).lower()}",)
    try:
        document = msgspec.json.decode(content) if path.endswith(".json") else decode_yaml(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return (f"is not JSON: {error}",)
    except NotYaml as error:
        return (f"is not YAML: {error}",)
    return find_spec_problems(document)


def find_spec_problems(document: object) -> tuple[str, ...]:
    """Return why a runtime refuses a CDI spec, decoded from any driver's file; nothing if it takes the file.

    A value of a wrong type or an unknown field is reported alone; broken rules are reported together, each with its
    place.
    """
    try:
        spec = msgspec.convert(document, SpecDocument)
    except msgspec.ValidationError as error:
        return (str(error),)
    return tuple(_find_document_problems(spec))


def _find_document_problems(spec: SpecDocument) -> Iterator[str]:
    if not _KIND.fullmatch(spec.kind):
        yield f"kind: {spec.kind!r} must be VENDOR/CLASS, as in vendor.example.com/gpu"
    yield from _find_name_problems([device.name for device in spec.devices])
    found = [(f"devices[{index}].containerEdits", device.container_edits) for index, device in enumerate(spec.devices)]
    for place, edits in found:
        if edits == EditsDocument():
            yield f"{place}: must not be empty"
    found += [("containerEdits", spec.container_edits)] if spec.container_edits is not None else []
    for place, edits in found:
        variables = [(index, one) for index, one in enumerate(edits.env) if one.find("=") < 1]
        yield from (f"{place}.env[{index}]: {one[:100]!r} must be NAME=VALUE" for index, one in variables)
        yield from (f"{place}.{problem}" for problem in find_edit_problems(_parse_edits(edits)))
    yield from _find_version_problems(spec, [edits for _, edits in found])


def _find_name_problems(names: Sequence[str]) -> Iterator[str]:
    if not names:
        yield "devices: must have at least one device"
    for index, name in enumerate(names):
        if not _DEVICE.fullmatch(name):
            yield f"devices[{index}].name: {name!r} must be letters, digits and _ - . :, with a letter or digit at ends"
        if name in names[:index]:
            yield f"devices[{index}].name: {name!r} is the name of devices[{names.index(name)}], too"


def _find_version_problems(spec: SpecDocument, found: Iterable[EditsDocument]) -> Iterator[str]:
    names = (device.name for device in spec.devices if device.name)
    lowest = find_lowest_version(names, map(_parse_edits, found))
    if spec.annotations or any(device.annotations for device in spec.devices) or "." in spec.kind.partition("/")[2]:
        lowest = max(lowest, "0.6.0")
    if spec.cdi_version not in VERSIONS:
        yield f"cdiVersion: {spec.cdi_version!r} must be one of {', '.join(VERSIONS)}"
    elif spec.cdi_version < lowest:
        yield f"cdiVersion: is {spec.cdi_version}, and what the file uses is there from {lowest} on"


def _parse_edits(edits: EditsDocument) -> ContainerEdits:
    pairs = [one.partition("=") for one in edits.env]
    env: Any = {name: value for name, equals, value in pairs if name and equals}
    return msgspec.convert(replace(edits, env=env), ContainerEdits, from_attributes=True)
