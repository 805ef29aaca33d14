"""Whether a loaded backend keeps the contract: its coroutines, their signatures, its constants.

Pure. Each function returns every violation at once, as sentences for the backend's author.
Its answers are judged in `pydra.backends.answers`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from pydra.backends.answers import find_json_problems
from pydra.backends.wire import Method
from pydra.backends.wording import suggest
from pydra.limits import SUBDOMAIN

REQUIRED = {Method.DISCOVER: (), Method.PREPARE: ("claim",), Method.UNPREPARE: ("claim", "prepared")}
OPTIONAL: dict[Method, tuple[str, ...]] = {
    Method.PLAN: ("claim", "held"),
    Method.RESTORE: ("held",),
    Method.WAIT_CHANGED: (),
    Method.MEASURE: (),
    Method.INHERIT: ("directory",),
}

MAX_DRIVER = 63


def find_object_violations(backend: Any) -> tuple[str, ...]:
    """What is wrong with the loaded object, before `connect`."""
    return tuple(_object_violations(backend))


def find_coroutine_violations(backend: Any) -> tuple[str, ...]:
    """What is wrong with the coroutines; of what `connect` yields, where there is a `connect`."""
    return tuple(_coroutine_violations(backend))


def find_methods(backend: Any) -> tuple[Method, ...]:
    """The coroutines that it has."""
    return tuple(method for method in Method if getattr(backend, method.value, None) is not None)


def _object_violations(backend: Any) -> Iterator[str]:
    connect = getattr(backend, "connect", None)
    if connect is None:
        yield from _coroutine_violations(backend)
    elif not callable(connect):
        yield f"connect is a {type(connect).__name__}; it must be a function that returns an async context manager"
    elif inspect.iscoroutinefunction(connect) or inspect.isasyncgenfunction(connect):
        yield "connect is a coroutine or generator; put @contextlib.asynccontextmanager above it"
    else:
        yield from _signature_violations("connect", connect, ())
    yield from _driver_violations(getattr(backend, "DRIVER", ""))
    survives = getattr(backend, "SURVIVES_REBOOT", False)
    if not isinstance(survives, bool):
        yield f"SURVIVES_REBOOT is a {type(survives).__name__}; it must be True or False"
    yield from _config_type_violations(getattr(backend, "CONFIG_TYPES", {}))
    yield from _device_class_violations(getattr(backend, "DEVICE_CLASSES", {}))


def _coroutine_violations(backend: Any) -> Iterator[str]:
    for method, arguments in (REQUIRED | OPTIONAL).items():
        name = method.value
        function = getattr(backend, name, None)
        if function is not None:
            yield from _function_violations(name, function, arguments)
        elif method in REQUIRED:
            taken = {other.value for other in Method}
            hint = suggest(name, (other for other in dir(backend) if not other.startswith("_") and other not in taken))
            yield f"{name} is missing{hint}; write `async def {name}({', '.join(arguments)})`"


def _function_violations(name: str, function: Any, arguments: tuple[str, ...]) -> Iterator[str]:
    wanted = f"`async def {name}({', '.join(arguments)})`"
    if not callable(function):
        yield f"{name} is a {type(function).__name__}, not a coroutine; write {wanted}"
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
        yield f"DRIVER is a {type(driver).__name__}; it must be a string such as gpu.example.com"
    elif len(driver) > MAX_DRIVER or not SUBDOMAIN.fullmatch(driver):
        yield f'DRIVER is "{driver}"; it must be a DNS subdomain of at most {MAX_DRIVER} bytes such as gpu.example.com'


def _config_type_violations(types: Any) -> Iterator[str]:
    if not isinstance(types, Mapping):
        yield f"CONFIG_TYPES is a {type(types).__name__}; it must map apiVersion/kind to a msgspec Struct"
        return
    for kind, config_type in types.items():
        if not isinstance(kind, str) or kind.count("/") not in (1, 2) or not all(kind.split("/")):
            yield f'CONFIG_TYPES has the key {kind!r}; it must read "group/version/Kind"'
        if not (isinstance(config_type, type) and issubclass(config_type, msgspec.Struct)):
            yield f"CONFIG_TYPES[{kind!r}] is not a msgspec Struct"
            continue
        try:
            msgspec.json.Decoder(config_type)
        except (TypeError, NameError) as error:
            yield f"CONFIG_TYPES[{kind!r}] cannot be decoded into: {error}"


def _device_class_violations(classes: Any) -> Iterator[str]:
    if not isinstance(classes, Mapping):
        yield f"DEVICE_CLASSES is a {type(classes).__name__}; it must map names to DeviceClass specs"
        return
    for name, spec in classes.items():
        if not isinstance(name, str) or not SUBDOMAIN.fullmatch(name):
            yield f"DEVICE_CLASSES has the key {name!r}; it must be a DNS subdomain such as gpu.example.com"
        if not isinstance(spec, Mapping):
            yield f"DEVICE_CLASSES[{name!r}] is a {type(spec).__name__}; it must be a mapping"
        yield from find_json_problems(spec, f"DEVICE_CLASSES[{name!r}]")
