"""Checks that a backend object and its return values satisfy the contract.

Each function returns all violations at once, as sentences for the backend's author. The classes of return values are
checked in the backend's process, where they are still Python objects; the rest is checked in the agent, which trusts
nothing that comes from there. The rules for devices and counters are in `pydra.inventory.api_rules`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, Union

import msgspec
from msgspec.structs import replace

from pydra.api_name_formats import DRIVER_RULE, SUBDOMAIN, is_driver_name
from pydra.backends.contract import Inheritance, InheritedClaim
from pydra.backends.type_mismatches import find_mismatches
from pydra.backends.wire import Method
from pydra.cdi.edits import ContainerEdits
from pydra.claim import Claim, PreparedDevice, find_device_name_problem, find_name_problem
from pydra.devices import ClaimDeviceStatus, CounterSet, Device, Inventory, Sample
from pydra.inventory.api_rules import check_attributes, check_device_status
from pydra.json_encodable import find_json_problems
from pydra.message_text import find_similar

REQUIRED = {Method.DISCOVER: (), Method.PREPARE: ("claim",), Method.UNPREPARE: ("claim", "prepared")}
OPTIONAL: dict[Method, tuple[str, ...]] = {
    Method.PLAN: ("claim", "held"),
    Method.APPLY: ("step", "result", "claim"),
    Method.UNDO: ("step", "result", "claim"),
    Method.RESTORE: ("held",),
    Method.WAIT_CHANGED: (),
    Method.MEASURE: (),
    Method.INHERIT: ("directory",),
}

_CLASS_FIELDS = ("config", "extendedResourceName", "selectors")
"""Of a DeviceClass's spec. A later version of Kubernetes may have more."""
_CONSTANTS = ("CONFIG_TYPES", "SETTINGS_TYPE", "DEVICE_CLASSES", "STEP_TYPES", "SURVIVES_REBOOT", "ONE_POD", "DEADLINE")

MAX_SAMPLES = 10_000
"""Samples of one `measure`; each is a series of `/metrics`, which the agent keeps in its memory."""

MAX_STATE = 256 * 1024
"""Bytes of JSON that the states of one claim may take; all are written durably with the claim's record."""

P = ParamSpec("P")
_METRIC = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_METRIC_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
"""Two underscores begin Prometheus' own labels: with a second `__name__` it refuses the page, and so all backends'."""


def _at_once(find: Callable[P, Iterator[str]]) -> Callable[P, tuple[str, ...]]:
    """Return all that the function yields."""

    @functools.wraps(find)
    def collect(*args: P.args, **kwargs: P.kwargs) -> tuple[str, ...]:
        return tuple(find(*args, **kwargs))

    return collect


def find_methods(backend: Any) -> tuple[Method, ...]:
    """Return the coroutines that the backend has."""
    return tuple(method for method in Method if getattr(backend, method.value, None) is not None)


def find_misspelt(backend: Any, live: Any) -> dict[str, str]:
    """Return names of the backend that resemble an optional one of the contract which it lacks, with that one."""
    coroutines = [method.value for method in OPTIONAL if getattr(live, method.value, None) is None]
    constants = [name for name in _CONSTANTS if getattr(backend, name, None) is None]
    helpers = [name for name, function in _own_functions(live).items() if _is_coroutine(function)]
    others = [name for name in dir(backend) if name.isupper() and name not in _CONSTANTS]
    found = {name: find_similar(name, coroutines, cutoff=0.85) for name in helpers}
    found |= {name: find_similar(name, constants, cutoff=0.85) for name in others}
    return {name: meant for name, meant in found.items() if meant}


@_at_once
def find_object_violations(backend: Any) -> Iterator[str]:
    """Yield what is wrong with the loaded object, before `connect`, its SETTINGS_TYPE apart."""
    connect, settings_type = getattr(backend, "connect", None), getattr(backend, "SETTINGS_TYPE", None)
    if connect is None:
        yield from find_coroutine_violations(backend, backend)
    elif not callable(connect):
        yield f"connect is of type {type(connect).__name__}, not a function that returns an async context manager"
    elif inspect.iscoroutinefunction(connect) or inspect.isasyncgenfunction(connect):
        yield "connect is a coroutine or generator; put @contextlib.asynccontextmanager above it"
    elif _is_wrapped_without_yield(connect):
        yield "connect has no yield; write `yield` and the object with the coroutines, instead of returning it"
    else:
        yield from _signature_violations("connect", connect, ("settings",) if settings_type is not None else ())
    if settings_type is not None and connect is None:
        yield "SETTINGS_TYPE needs `connect(settings)`, which is missing"
    check = getattr(backend, "check_config", None)
    if check is not None:
        yield from _check_violations(check, settings_type)
    examine = getattr(backend, "examine", None)
    if examine is not None:
        yield from _plain_violations("examine", examine, ("settings", "held"))
    yield from _driver_violations(getattr(backend, "DRIVER", ""))
    for name in ("SURVIVES_REBOOT", "ONE_POD"):
        flag = getattr(backend, name, False)
        if not isinstance(flag, bool):
            yield f"{name} is of type {type(flag).__name__}; it must be True or False"
    yield from _config_type_violations(getattr(backend, "CONFIG_TYPES", {}))
    yield from _step_type_violations(getattr(backend, "STEP_TYPES", ()))
    yield from _device_class_violations(getattr(backend, "DEVICE_CLASSES", {}))


def _is_wrapped_without_yield(connect: Any) -> bool:
    """Return whether it is a coroutine below @asynccontextmanager, which takes any function."""
    wrapper = getattr(connect, "__globals__", {}).get("__name__", "")
    return wrapper == contextlib.__name__ and inspect.iscoroutinefunction(getattr(connect, "__wrapped__", None))


def _check_violations(check: Any, settings_type: Any) -> Iterator[str]:
    yield from _plain_violations("check_config", check, ("config", "settings"))
    if settings_type is None and callable(check) and not _is_coroutine(check):
        yield "check_config needs SETTINGS_TYPE, which is missing; rules without settings belong into CONFIG_TYPES"


def _plain_violations(name: str, function: Any, arguments: tuple[str, ...]) -> Iterator[str]:
    if not callable(function) or _is_coroutine(function) or inspect.isasyncgenfunction(function):
        yield f"{name} must be a plain function; write `def {name}({', '.join(arguments)})`"
    else:
        yield from _signature_violations(name, function, arguments)


@_at_once
def find_manager_violations(manager: Any) -> Iterator[str]:
    """Yield what is wrong with what `connect` returned."""
    if not hasattr(type(manager), "__aenter__"):
        yield (
            f"connect returned {name_class(manager)}, not an async context manager; "
            "write `async def connect` with @contextlib.asynccontextmanager above it"
        )


@_at_once
def find_coroutine_violations(live: Any, backend: Any) -> Iterator[str]:
    """Yield what is wrong with the coroutines of `live`, the object that `connect` of the backend yields."""
    has_steps = bool(getattr(backend, "STEP_TYPES", ()))
    deadline = getattr(live, "DEADLINE", 0)
    if isinstance(deadline, bool) or not isinstance(deadline, int | float) or not 0 <= deadline < math.inf:
        yield f"DEADLINE is {deadline!r}; it must be a number of seconds, 0 or more"
    required = (Method.PLAN, Method.APPLY, Method.UNDO) if has_steps else (Method.UNPREPARE,)
    for method, arguments in (REQUIRED | OPTIONAL).items():
        name = method.value
        function = getattr(live, name, None)
        if function is not None:
            yield from _function_violations(name, function, arguments)
            if method in (Method.APPLY, Method.UNDO) and not has_steps:
                yield f"{name} needs STEP_TYPES, which is missing or empty"
        elif method in (Method.DISCOVER, Method.PREPARE, *required):
            similar = find_similar(name, _own_functions(live), cutoff=0.75)
            todo = f"rename {similar}, or write" if similar else "write"
            yield f"{name} is missing; {todo} `async def {name}({', '.join(arguments)})`"


def _own_functions(backend: Any) -> dict[str, Any]:
    """Return the functions that may be a misspelt coroutine of the contract, by name."""
    names = {name for name in dir(backend) if not name.startswith("_")} - {method.value for method in Method}
    # Found without running the backend's code: a property may read the hardware, or fail.
    found = {name: inspect.getattr_static(backend, name, None) for name in sorted(names)}
    functions = {name: getattr(one, "__func__", one) for name, one in found.items() if inspect.isroutine(one)}
    return {name: one for name, one in functions.items() if inspect.isfunction(one)}


def _function_violations(name: str, function: Any, arguments: tuple[str, ...]) -> Iterator[str]:
    wanted = f"`async def {name}({', '.join(arguments)})`"
    if not callable(function):
        yield f"{name} is of type {type(function).__name__}, not a coroutine; write {wanted}"
        return
    if inspect.isasyncgenfunction(function):
        yield f"{name} is an async generator (it has a yield), not a coroutine; write {wanted} and return once"
    elif not _is_coroutine(function):
        yield f"{name} is a plain function, not a coroutine; write {wanted} and await asyncio.to_thread for what blocks"
    yield from _signature_violations(name, function, arguments)


def _is_coroutine(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _signature_violations(name: str, function: Any, arguments: tuple[str, ...]) -> Iterator[str]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in C: no signature to read
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        given = signature.replace(return_annotation=inspect.Signature.empty)
        yield f"{name}{given} cannot be called as {name}({', '.join(arguments)}): {error}"


def _driver_violations(driver: Any) -> Iterator[str]:
    if driver == "":
        return  # the settings must give one
    if not isinstance(driver, str):
        yield f"DRIVER is of type {type(driver).__name__}; it must be a string such as gpu.example.com"
    elif not is_driver_name(driver):
        yield f'DRIVER is "{driver}"; it must be {DRIVER_RULE}'


@_at_once
def find_settings_type_violations(settings_type: Any) -> Iterator[str]:
    """Yield why settings cannot be decoded to the object's SETTINGS_TYPE; it may be None."""
    if settings_type is None:
        return
    if not (isinstance(settings_type, type) and issubclass(settings_type, msgspec.Struct)):
        yield f"SETTINGS_TYPE is {settings_type!r}; it must be a msgspec Struct"
        return
    try:
        fields = msgspec.inspect.type_info(settings_type).fields  # type: ignore[attr-defined]
    except (TypeError, NameError) as error:
        yield f"SETTINGS_TYPE cannot be decoded into: {error}"
        return
    for field in fields:
        if field.required:
            yield f"SETTINGS_TYPE: {field.name} has no default; every setting must have one"


def _config_type_violations(types: Any) -> Iterator[str]:
    if not isinstance(types, Mapping):
        yield f"CONFIG_TYPES is of type {type(types).__name__}; it must map apiVersion/kind to a msgspec Struct"
        return
    for kind, config_type in types.items():
        is_named = isinstance(kind, str) and kind.count("/") in (1, 2) and all(kind.removesuffix("/").split("/"))
        if not is_named and kind != "":
            yield f'CONFIG_TYPES has the key {kind!r}; it must read "group/version/Kind", "version/", or be empty'
        if not (isinstance(config_type, type) and issubclass(config_type, msgspec.Struct)):
            yield f"CONFIG_TYPES[{kind!r}] is not a msgspec Struct"
            continue
        try:
            msgspec.json.Decoder(config_type)
        except (TypeError, NameError) as error:
            yield f"CONFIG_TYPES[{kind!r}] cannot be decoded into: {error}"


def _step_type_violations(types: Any) -> Iterator[str]:
    if not isinstance(types, list | tuple):
        yield f"STEP_TYPES is of type {type(types).__name__}; it must be a list or tuple of msgspec Structs"
        return
    for place, step_type in enumerate(types):
        where = f"STEP_TYPES[{place}]"
        if not (isinstance(step_type, type) and issubclass(step_type, msgspec.Struct)):
            yield f"{where} is {step_type!r}; it must be a msgspec Struct"
            continue
        config = step_type.__struct_config__
        if not config.frozen or not isinstance(config.tag, str):
            yield f'{where}: {step_type.__name__} must be frozen and have a string tag: `frozen=True, tag="make-it"`'
    try:
        msgspec.json.Decoder(Union[tuple(types)] if types else None)  # noqa: UP007 - types known at run time
    except (TypeError, NameError) as error:
        yield f"STEP_TYPES cannot be decoded into: {error}"


def _device_class_violations(classes: Any) -> Iterator[str]:
    if not isinstance(classes, Mapping):
        yield f"DEVICE_CLASSES is of type {type(classes).__name__}; it must map names to DeviceClass specs"
        return
    for name, spec in classes.items():
        if not isinstance(name, str) or not SUBDOMAIN.fullmatch(name):
            yield f"DEVICE_CLASSES has the key {name!r}; it must be a DNS subdomain such as gpu.example.com"
        if not isinstance(spec, Mapping):
            yield f"DEVICE_CLASSES[{name!r}] is of type {type(spec).__name__}; it must be a mapping"
            continue
        # The API server drops what it does not know, and a class without selectors has the devices of all drivers.
        for field in map(str, spec):
            if field not in _CLASS_FIELDS and (meant := find_similar(field, _CLASS_FIELDS)):
                yield f"DEVICE_CLASSES[{name!r}] has no field {field}; rename it to {meant}"
        yield from find_json_problems(spec, f"DEVICE_CLASSES[{name!r}]")


# Answers


@_at_once
def find_answer_type_violations(method: Method, answer: Any) -> Iterator[str]:
    """Find values of other classes than the contract's, where they are still Python objects."""
    name = method.value
    if method in _OBJECTS:
        wanted, members = _OBJECTS[method]
        if not isinstance(answer, wanted):
            yield f"{name} returned {name_class(answer)}, not a pydra.{wanted.__name__}"
            return
        for member, kind in members.items():
            yield from _wrong_items(f"{name}: {member}", getattr(answer, member), kind)
    elif method in _LISTS:
        yield from _wrong_items(name, answer, _LISTS[method])
        for one in answer if isinstance(answer, list | tuple) else ():
            edits: object = getattr(one, "edits", None)
            if isinstance(one, PreparedDevice) and not isinstance(edits, ContainerEdits):
                yield f"{name}: edits of {one.device} are of type {type(edits).__name__}, not pydra.ContainerEdits"
    elif method in _SILENT and answer is not None:
        yield f"{name} returned a value of type {type(answer).__name__}; it must return nothing"


_OBJECTS: Mapping[Method, tuple[type, Mapping[str, type]]] = {
    Method.DISCOVER: (
        Inventory,
        {"devices": Device, "counter_sets": CounterSet, "claim_statuses": ClaimDeviceStatus},
    ),
    Method.INHERIT: (Inheritance, {"claims": InheritedClaim}),
}
"""What the methods return that return an object, and the classes in its lists."""
_LISTS: Mapping[Method, type] = {Method.PREPARE: PreparedDevice, Method.MEASURE: Sample}
_SILENT = {Method.UNPREPARE, Method.UNDO, Method.WAIT_CHANGED, Method.RESTORE}


def _wrong_items(where: str, items: Any, wanted: type) -> Iterator[str]:
    if not isinstance(items, list | tuple):
        yield f"{where} is {name_class(items)}, not a list or tuple of pydra.{wanted.__name__}"
        return
    for index, item in enumerate(items):
        if not isinstance(item, wanted):
            yield f"{where}[{index}] is of type {type(item).__name__}, not a pydra.{wanted.__name__}"


def name_class(answer: Any) -> str:
    """Name what was returned, for a sentence that goes on."""
    return "None (is `return` missing?)" if answer is None else f"a value of type {type(answer).__name__}"


def find_value_violations(body: msgspec.Raw, wanted: Any) -> tuple[str, ...]:
    """Return every mismatch between an encoded result and the type; those that several items share, once."""
    try:
        value = msgspec.msgpack.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return (f"the answer cannot be decoded: {error}",)
    alike: dict[str, list[str]] = {}
    for one in find_mismatches(value, wanted):
        alike.setdefault(re.sub(r"\[\d+\]", "[]", one), []).append(one)
    return tuple(one if not more else f"{one} (and {len(more)} more like this)" for one, *more in alike.values())


def sort_prepared(claim: Claim, prepared: Sequence[PreparedDevice]) -> tuple[PreparedDevice, ...]:
    """Return the entries, which have no violations, in the order of the claim's devices, without empty share ids."""
    order = {_identity(device): place for place, device in enumerate(claim.devices)}
    entries = [replace(device, share_id=device.share_id or None) for device in prepared]
    return tuple(sorted(entries, key=lambda device: order[_identity(device)]))


@_at_once
def find_prepared_violations(claim: Claim, prepared: Sequence[PreparedDevice]) -> Iterator[str]:
    """Check that each of the claim's devices has one entry, and check states, attributes and statuses."""
    wanted = Counter(_identity(device) for device in claim.devices)
    given = Counter(_identity(device) for device in prepared)
    for identity in sorted(wanted - given):
        yield f"prepare returned nothing for {_spell(identity)}"
    for identity in sorted(given - wanted):
        why = "twice" if identity in wanted else "which the claim does not have"
        yield f"prepare returned {_spell(identity)}, {why}"
    for device in prepared:
        said = check_device_status(device.status) if device.status else ()
        problems = (*check_attributes(device.attributes), *said)
        yield from (f"{_spell(_identity(device))}: {problem}" for problem in problems)
    unusable = [p for d in prepared for p in find_json_problems(d.state, f"state of {_spell(_identity(d))}")]
    if unusable:
        yield from unusable
        return
    size = sum(len(msgspec.json.encode(device.state)) for device in prepared)
    if size > MAX_STATE:
        yield f"the states of the claim's devices take {size} bytes of JSON, the limit is {MAX_STATE}"


def find_size_violations(method: Method, body: msgspec.Raw) -> tuple[str, ...]:
    """Find a JSON value that is certainly too large for the claim's record, before it is decoded."""
    if memoryview(body).nbytes <= 3 * MAX_STATE:  # a number may take 9 bytes where JSON has `0.0`
        return ()
    return (f"{method.value} returned more than {MAX_STATE} bytes of JSON, which is the limit",)


def find_json_violations(method: Method, value: Any) -> tuple[str, ...]:
    """Check that what `plan` or `apply` returned is JSON, and small enough for the claim's record."""
    name = method.value
    problems = tuple(find_json_problems(value, f"what {name} returned"))
    if not problems and (size := len(msgspec.json.encode(value))) > MAX_STATE:
        return (f"{name} returned {size} bytes of JSON, the limit is {MAX_STATE}",)
    return problems


@_at_once
def find_inheritance_violations(inheritance: Inheritance) -> Iterator[str]:
    """Find invalid names, duplicate claims, and claims whose devices and prepared devices differ."""
    claims = [one.claim for one in inheritance.claims]
    for claim in claims:
        is_named = claim.namespace or claim.name  # without either, the agent looks the claim up by its uid
        names = (claim.namespace, claim.name) if is_named else ("default", "unknown")
        if problem := find_name_problem(claim.uid, *names):
            yield f"inherit: a claim {problem}"
    for uid, count in sorted(Counter(claim.uid for claim in claims).items()):
        if count > 1:
            yield f"inherit: the claim with uid {uid} is listed {count} times"
    for one in inheritance.claims:
        for violation in (*_device_name_problems(one.claim), *find_prepared_violations(one.claim, one.prepared)):
            yield f"inherit: claim {one.claim.uid}: {violation}"


def _device_name_problems(claim: Claim) -> Iterator[str]:
    for index, device in enumerate(claim.devices):
        if problem := find_device_name_problem(device.request, device.pool, device.device, device.share_id):
            yield f"devices[{index}].{problem}"


def find_sample_violations(samples: Sequence[Sample]) -> tuple[str, ...]:
    """Find names that Prometheus does not accept, and more samples than the agent keeps."""
    if len(samples) > MAX_SAMPLES:
        return (f"measure returned {len(samples)} samples, the limit is {MAX_SAMPLES}",)
    return tuple(
        f"measure: {what} {name!r} must match {allowed.pattern}"
        for sample in samples
        for what, allowed, names in (
            ("sample name", _METRIC, (sample.name,)),
            ("label name", _METRIC_LABEL, sample.labels),
        )
        for name in names
        if not allowed.fullmatch(name)
    )


def _identity(device: Any) -> tuple[str, str, str, str]:
    return (device.request, device.pool, device.device, device.share_id or "")


def _spell(identity: tuple[str, str, str, str]) -> str:
    request, pool, device, share = identity
    return f"device {device} of pool {pool} for request {request}" + (f" (share {share})" if share else "")
