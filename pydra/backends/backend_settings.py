"""Decodes a backend's own settings from environment variables and the agent's settings file.

A field `max_shares` is the variable `PYDRA_<BACKEND>_MAX_SHARES`, and `backendSettings.<backend>.maxShares` in the
file; the variable wins. In a variable a list is written with commas, a mapping as `name=value` with commas or as JSON,
any other object as JSON. All problems are reported at once, each with its place, what was found, what is allowed and
the default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

import msgspec
from msgspec import inspect as mi

from pydra.backends.type_mismatches import describe, find_mismatches
from pydra.backends.wire import SettingValue
from pydra.errors import SettingsError
from pydra.json_encodable import find_json_problems
from pydra.message_text import suggest

RESERVED = ("STATE", "SCENARIO")
"""Variables that pydra's own tools set for backends of simulated hardware, whether these have such settings or not."""


def read_settings(
    settings_type: type[Any], backend: str, prefix: str, environ: Mapping[str, str], values: Mapping[str, Any]
) -> Any:
    """Decode a backend's settings to their type, a msgspec Struct with a default for each field.

    `prefix` is `PYDRA_<BACKEND>_`, and `values` is `backendSettings.<backend>` of the settings file, by names in camel
    case. Variables take precedence.

    Raises:
        SettingsError: unknown settings, values that are not allowed; all at once.
    """
    fields = {field.name: field for field in _fields(settings_type)}
    problems = [*_unknown_variables(fields, prefix, environ), *_unknown_keys(fields, backend, values)]
    found: dict[str, Any] = {}
    for field in fields.values():
        place, value, source = _find(field, backend, prefix, environ, values)
        if not source:
            continue
        unusable = [*find_json_problems(value, place)]
        problems += unusable or [_explain(place, mismatch, field) for mismatch in find_mismatches(value, field.type)]
        found[field.encode_name] = value
    if problems:
        raise SettingsError(problems)
    try:
        return msgspec.convert(found, settings_type)
    except msgspec.ValidationError as error:  # a rule across fields, from the type's __post_init__
        raise SettingsError([f"settings of backend {backend}: {error}"]) from error
    except Exception as error:  # which is the backend's code and may fail in any way
        why = f"the backend's own rules fail with {type(error).__name__}: {error}"
        raise SettingsError([f"settings of backend {backend}: they cannot be checked, {why}"]) from error


def describe_settings(
    settings: Any, backend: str, prefix: str, environ: Mapping[str, str], values: Mapping[str, Any]
) -> tuple[SettingValue, ...]:
    """Describe each setting as text; `settings` is what `read_settings` returned for the other arguments."""
    rows = []
    for field in _fields(type(settings)):
        _, _, source = _find(field, backend, prefix, environ, values)
        rows.append(
            SettingValue(
                name=_camel(field.name),
                variable=_variable(field, prefix),
                allowed=describe(field.type),
                default=_spell(_default(field)),
                value=_spell(getattr(settings, field.name)),
                source=source or "default",
            )
        )
    return tuple(rows)


def settings_schema(settings_type: type[Any]) -> dict[str, Any]:
    """Return the JSON schema of `backendSettings.<backend>` for this type, self-contained, with `$defs`."""
    schema = msgspec.json.schema(settings_type)
    definitions: dict[str, Any] = schema.get("$defs", {})
    name = str(schema["$ref"]).rpartition("/")[2]
    own = dict(definitions.pop(name))
    names = {field.encode_name: _camel(field.name) for field in _fields(settings_type)}
    own["properties"] = {names[key]: value for key, value in own.get("properties", {}).items()}
    own["additionalProperties"] = False
    return {**own, **({"$defs": definitions} if definitions else {})}


def service_prefixes(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the prefixes of variables that Kubernetes sets in every pod for a Service, such as `pydra-webhook`.

    Source: kubelet, pkg/kubelet/envvars: NAME_SERVICE_HOST, NAME_SERVICE_PORT..., NAME_PORT...
    """
    for name in environ:
        if name.endswith("_SERVICE_HOST"):
            service = name.removesuffix("_SERVICE_HOST")
            yield from (f"{service}_SERVICE_", f"{service}_PORT")


def _fields(settings_type: type[Any]) -> tuple[mi.Field, ...]:
    info = mi.type_info(settings_type)
    return info.fields if isinstance(info, mi.StructType) else ()


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _variable(field: mi.Field, prefix: str) -> str:
    return f"{prefix}{field.name.upper()}"


def _default(field: mi.Field) -> Any:
    return field.default_factory() if callable(field.default_factory) else field.default


def _spell(value: Any) -> str:
    return msgspec.json.encode(value.value if isinstance(value, Enum) else value, enc_hook=str).decode()


def _find(
    field: mi.Field, backend: str, prefix: str, environ: Mapping[str, str], values: Mapping[str, Any]
) -> tuple[str, Any, str]:
    """Return the setting's place for messages, its value, and the source; no source if it is not given."""
    variable, key = _variable(field, prefix), _camel(field.name)
    if variable in environ:
        return variable, _read_text(environ[variable], field.type), variable
    if key in values:
        path = f"backendSettings.{backend}.{key}"
        return path, values[key], path
    return "", None, ""


def _read_text(text: str, wanted: mi.Type) -> Any:
    """Parse a variable's text as a JSON value of the wanted type; return the text itself if it does not fit."""
    while isinstance(wanted, mi.Metadata):
        wanted = wanted.type
    types = wanted.types if isinstance(wanted, mi.UnionType) else (wanted,)
    members = sorted(types, key=lambda member: not isinstance(member, mi.NoneType))  # every text is a string
    for member in members:
        value = _read_member(text.strip(), member)
        if value is not _NOTHING and not find_mismatches(value, member):
            return value
    values = [value for member in members if (value := _read_member(text.strip(), member)) is not _NOTHING]
    return values[0] if values else text


_NOTHING = object()
_WORDS = {"true": True, "false": False, "1": True, "0": False}


def _read_member(text: str, wanted: mi.Type) -> Any:  # noqa: PLR0911 - one line a type
    while isinstance(wanted, mi.Metadata):
        wanted = wanted.type
    match wanted:
        case mi.NoneType():
            return None if text in ("", "null") else _NOTHING
        case mi.BoolType():
            return _WORDS.get(text.lower(), _NOTHING)
        case mi.IntType():
            return _try(int, text)
        case mi.FloatType():
            return _try(float, text)
        case mi.CollectionType(item_type=item) if not text.startswith("["):
            return [_read_text(part, item) for part in text.split(",") if part.strip()]
        case mi.DictType(value_type=value) if not text.startswith("{"):
            pairs = [part.partition("=") for part in text.split(",") if part.strip()]
            if not all(equals for _, equals, _ in pairs):
                return _NOTHING
            return {name.strip(): _read_text(rest, value) for name, _, rest in pairs}
        case mi.CollectionType() | mi.TupleType() | mi.DictType() | mi.StructType() | mi.TypedDictType():
            return _try(msgspec.json.decode, text)
        case mi.EnumType() | mi.LiteralType():
            values = wanted.values if isinstance(wanted, mi.LiteralType) else [one.value for one in wanted.cls]
            return next((value for value in values if str(value) == text), text)
    return text


def _try(read: Callable[[str], Any], text: str) -> Any:
    try:
        return read(text)
    except (ValueError, msgspec.DecodeError):
        return _NOTHING


def _explain(place: str, mismatch: str, field: mi.Field) -> str:
    return place + mismatch.removeprefix("$").removesuffix(".") + f", default: {_spell(_default(field))}"


def _unknown_variables(fields: Mapping[str, Any], prefix: str, environ: Mapping[str, str]) -> Iterator[str]:
    known = [f"{prefix}{name.upper()}" for name in fields]
    tolerated = (*(f"{prefix}{name}" for name in RESERVED), *service_prefixes(environ))
    unknown = [
        name for name in environ if name.startswith(prefix) and name not in known and not name.startswith(tolerated)
    ]
    longer = _find_longer_prefixes(prefix) if unknown else ()
    for name in sorted(unknown):
        if not name.startswith(longer):
            allowed = ", ".join(known) or "none"
            yield f"{name}: this backend has no such setting{suggest(name, known)}, allowed: {allowed}"


def _find_longer_prefixes(prefix: str) -> tuple[str, ...]:
    """Return those of other installed backends: PYDRA_NVIDIA_COMPUTE_DOMAIN_STATE is not a setting of nvidia."""
    # Imported for what looks unknown only: it reads the metadata of every distribution.
    from pydra.backends.discovery import list_backends, variable_prefix  # noqa: PLC0415

    found = (f"{variable_prefix(one.name)}_" for one in list_backends())
    return tuple(one for one in found if one.startswith(prefix) and one != prefix)


def _unknown_keys(fields: Mapping[str, Any], backend: str, values: Mapping[str, Any]) -> Iterator[str]:
    known = [_camel(name) for name in fields]
    for key in values:
        if key not in known:
            allowed = ", ".join(known) or "none"
            yield f"backendSettings.{backend}.{key}: no such setting{suggest(str(key), known)}, allowed: {allowed}"
