"""Whether an object may be stored: its opaque configs against the types of the drivers that are known. Pure.

Closed only for what is surely ours. Other drivers' configs, other resources and objects of another shape pass. So do
updates that cannot bring a config, and what was stored before: a config that the old object has too is not looked at
again, so that classes of an older release stay updatable.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec

from pydra.admission.places import GROUP, MOST_PARAMETERS, OPERATIONS, VERSIONS, FoundConfig, find_configs
from pydra.admission.review import Question, Verdict
from pydra.backends.config import ConfigTypes, find_config_problems

ALLOWED, DENIED, NOT_OURS = "allowed", "denied", "not_ours"
RESULTS = (ALLOWED, DENIED, NOT_OURS)
MOST_PROBLEMS = 100
"""No more are told: an object of 32 configs of 10 KiB could have thousands, and nobody reads them."""

Drivers = Mapping[str, ConfigTypes]
"""From a driver's name in the API to the kinds of its opaque parameters."""


def judge(question: Question, drivers: Drivers) -> Verdict:
    """All faults of all configs of known drivers, each with the path to the field in the object."""
    resource = question.resource
    ours = resource.group == GROUP and resource.version in VERSIONS
    operations = OPERATIONS.get(resource.resource, ()) if ours else ()
    if question.sub_resource or question.operation not in operations:
        return Verdict(result=NOT_OURS)
    problems = tuple(islice(_problems(question, drivers), MOST_PROBLEMS + 1))
    if len(problems) > MOST_PROBLEMS:
        problems = (*problems[:MOST_PROBLEMS], f"these are the first {MOST_PROBLEMS}, and there are more")
    return Verdict(result=DENIED if problems else ALLOWED, problems=problems)


def _problems(question: Question, drivers: Drivers) -> Iterator[str]:
    old = question.old_object if question.operation == "UPDATE" else None
    stored = {_identity(one) for one in find_configs(question.resource.resource, old)}
    for config in find_configs(question.resource.resource, question.object):
        types = drivers.get(config.driver)
        if types is not None and _identity(config) not in stored:
            yield from (f"{config.path}{fault}" for fault in _faults(config.parameters, types))


def _faults(parameters: Any, types: ConfigTypes) -> Iterator[str]:
    try:
        size = len(msgspec.json.encode(parameters))
    except UnicodeError:
        yield ": is no valid Unicode, and cannot be read on the node"
        return
    if size > MOST_PARAMETERS:
        yield f": found {size} bytes, allowed are {MOST_PARAMETERS}"
        return
    try:
        found = find_config_problems(parameters, types)
    except Exception as error:  # noqa: BLE001 - a backend's rules are others' code; they would fail on the node too
        yield f": cannot be checked, the backend's own rules fail with {type(error).__name__}: {error}"
        return
    yield from (problem.removeprefix("$") for problem in found)


def _identity(config: FoundConfig) -> str:
    return json.dumps((config.driver, config.parameters), sort_keys=True)  # as text: to Python, 1 is True
