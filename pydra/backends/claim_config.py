"""Decodes a claim's opaque parameters into the backend's config types.

A parameters object names its type by `apiVersion` and `kind`; the backend's CONFIG_TYPES maps that to a msgspec
Struct. One `InvalidConfig` has all problems of all configs.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from pydra.backends.type_mismatches import find_mismatches, show
from pydra.claim import AllocatedDevice, Claim, OpaqueConfig
from pydra.errors import InvalidConfig
from pydra.message_text import find_similar, format_suggestion, suggest

ConfigTypes = Mapping[str, type[Any]]
"""From `"group/version/Kind"` to the Struct of that kind; `"version/"` is that of parameters without `kind`,
`""` that of those with neither header.
"""

ConfigCheck = Callable[[Any], Iterable[str]]
"""Yields what a backend's settings do not allow in a decoded config; each problem begins with the field's path."""

MOST_PROBLEMS = 100
"""More are not looked for: a claim of 32 configs of 10 KiB could have thousands."""

_HEADER = ("apiVersion", "kind")


def find_check(backend: Any, settings: Any) -> ConfigCheck | None:
    """Return the backend's `check_config` with these settings, if it has one."""
    check = getattr(backend, "check_config", None)
    return None if check is None else partial(check, settings=settings)


def take_first(problems: Iterable[str]) -> tuple[str, ...]:
    """Return the first problems, and whether there are more; no others are looked for."""
    found = tuple(islice(problems, MOST_PROBLEMS + 1))
    if len(found) <= MOST_PROBLEMS:
        return found
    return (*found[:MOST_PROBLEMS], f"these are the first {MOST_PROBLEMS}, and there are more")


def decode_config(config: OpaqueConfig, types: ConfigTypes, check: ConfigCheck | None = None) -> Any:
    """Return the config as a value of its type. Raises InvalidConfig with all problems."""
    problems = find_config_problems(config.parameters, types, check)
    if problems:
        raise InvalidConfig(tuple(f"{config.position}: {problem}" for problem in problems))
    return _convert(config.parameters, types)


def decode_claim(claim: Claim, types: ConfigTypes, check: ConfigCheck | None = None) -> Claim:
    """Return the claim with every config decoded. Raises InvalidConfig with the first problems of all its devices.

    A config that several devices share is decoded, and reported, once.
    """
    decoded: dict[tuple[str, bytes], Any] = {}
    problems: dict[str, None] = {}
    devices = []
    for device in claim.devices:
        values = []
        for config in device.configs:
            key = (config.position, msgspec.json.encode(config.parameters))
            if key not in decoded:
                try:
                    decoded[key] = decode_config(config, types, check)
                except InvalidConfig as error:
                    problems |= dict.fromkeys(error.problems)
                    if len(problems) > MOST_PROBLEMS:
                        raise InvalidConfig(take_first(problems)) from error
                    continue
            values.append(decoded[key])
        positions = tuple(config.position for config in device.configs)
        devices.append(msgspec.structs.replace(device, configs=tuple(values), positions=positions))
    if problems:
        raise InvalidConfig(tuple(problems))
    return msgspec.structs.replace(claim, devices=tuple(devices))


def decode_what_fits(claim: Claim, types: ConfigTypes) -> Claim:
    """Return the claim with the configs that still decode: undoing must not fail because of configs or settings."""
    return msgspec.structs.replace(claim, devices=tuple(_with_what_fits(device, types) for device in claim.devices))


def find_config_problems(parameters: Any, types: ConfigTypes, check: ConfigCheck | None = None) -> tuple[str, ...]:
    """Return all problems of one parameters object, each with its path; empty if it decodes and passes the check."""
    if not isinstance(parameters, Mapping):
        return (f"$: found {show(parameters)}, allowed: an object",)
    kind = _kind_of(parameters)
    if kind not in types:
        return _kind_problems(parameters, types)
    wanted = types[kind]
    value = _body(parameters, wanted)
    problems = find_mismatches(value, wanted)
    if problems:
        return problems
    try:
        config = msgspec.convert(value, wanted)
        return () if check is None else tuple(f"$.{problem}" for problem in check(config))
    except msgspec.ValidationError as error:  # a rule across fields, from the type's __post_init__
        message, _, path = str(error).partition(" - at `")
        return (f"{path.rstrip('`') or '$'}: {message}",)
    except Exception as error:  # noqa: BLE001 - these rules are the backend's code and may fail in any way
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}"
        return (f"$: cannot be checked, the backend's own rules fail with {type(error).__name__}: {error} ({place})",)


def _convert(parameters: Mapping[str, Any], types: ConfigTypes) -> Any:
    wanted = types[_kind_of(parameters)]
    return msgspec.convert(_body(parameters, wanted), wanted)


def describe_kinds(types: Iterable[str]) -> str:
    """Return what a message calls the allowed kinds."""
    named = ", ".join(f"{one[:-1]} without kind" if one.endswith("/") else one for one in sorted(filter(None, types)))
    without = "neither of both" if "" in types else ""
    return ", or ".join(filter(None, (named, without))) or "none, this backend takes no configuration"


def build_header(kind: str) -> dict[str, str]:
    """Return `apiVersion` and `kind` of parameters of this kind, as far as they have them."""
    version, _, name = kind.rpartition("/")
    return {key: value for key, value in zip(_HEADER, (version, name), strict=True) if value}


def _kind_of(parameters: Mapping[str, Any]) -> str:
    """The kind; empty where neither header is there, which is how older drivers have it."""
    if not any(name in parameters for name in _HEADER):
        return ""
    return f"{parameters.get('apiVersion', '')}/{parameters.get('kind', '')}"


def _body(parameters: Mapping[str, Any], wanted: type[Any]) -> dict[str, Any]:
    """Return the parameters without `apiVersion` and `kind`, unless the type has fields or a tag of that name."""
    struct_config = wanted.__struct_config__
    own = {*wanted.__struct_encode_fields__, struct_config.tag_field}
    return {name: value for name, value in parameters.items() if name not in _HEADER or name in own}


def _kind_problems(parameters: Mapping[str, Any], types: ConfigTypes) -> tuple[str, ...]:
    allowed = describe_kinds(types)
    absent = [f"$.{name}: missing" for name in _HEADER if name not in parameters]
    if absent:
        return tuple(f"{problem}, allowed (apiVersion/kind): {allowed}" for problem in absent)
    found = _kind_of(parameters)
    named = [kind for kind in types if kind]
    meant = {name: format_suggestion(text) for name, text in build_header(find_similar(found, named)).items()}
    versions, kinds = {kind.rpartition("/")[0] for kind in named}, {kind.rpartition("/")[2] for kind in named}
    wrong = [
        f"$.{name}: found {show(parameters[name])}{meant.get(name, '')}"
        for name, known in zip(_HEADER, (versions, kinds), strict=True)
        if str(parameters[name]) not in known
    ] or [f"$: found {show(found)}{suggest(found, named)}"]
    return tuple(f"{problem}, allowed (apiVersion/kind): {allowed}" for problem in wrong)


def _with_what_fits(device: AllocatedDevice, types: ConfigTypes) -> AllocatedDevice:
    explicit = (*device.explicit, *(False for _ in device.configs))  # a record of an older pydra has none
    fitting = [
        (_convert(config.parameters, types), named, config.position)
        for config, named in zip(device.configs, explicit, strict=False)
        if not find_config_problems(config.parameters, types)
    ]
    configs, named, positions = zip(*fitting, strict=True) if fitting else ((), (), ())
    return msgspec.structs.replace(device, configs=configs, explicit=named, positions=positions)
