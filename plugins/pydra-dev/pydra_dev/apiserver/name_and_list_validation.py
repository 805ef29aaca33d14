"""The rules for names, labels and lists. Pure.

Source: apimachinery `pkg/util/validation`, `pkg/apis/resource/validation` (Kubernetes 1.36).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

from msgspec.structs import replace

from pydra_dev.api.errors import FieldError, duplicate, invalid, required, too_long, too_many

T = TypeVar("T")
Errors = Iterator[FieldError]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NUMBER = r"(?:0|[1-9]\d*)"
_PRERELEASE = r"(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
SEMVER = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-{_PRERELEASE}(?:\.{_PRERELEASE})*)?(?:\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*)?"
)

_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_C_IDENTIFIER_TEXT = (
    "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters "
    "or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')"
)
_QUALIFIED_TEXT = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_LABEL_VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


def size(text: str) -> int:
    """Length as the API counts it, in bytes."""
    return len(text.encode())


def check_label(path: str, text: str) -> Errors:
    """A DNS label: device, request and counter names."""
    if not _LABEL.fullmatch(text):
        yield invalid(path, text, "must not contain dots" if _SUBDOMAIN.fullmatch(text) else _LABEL_TEXT)
    if size(text) > 63:
        yield invalid(path, text, "must be no more than 63 characters")


def check_subdomain(path: str, text: str) -> Errors:
    """A DNS subdomain: most objects' names."""
    if not _SUBDOMAIN.fullmatch(text):
        yield invalid(path, text, _SUBDOMAIN_TEXT)
    if size(text) > 253:
        yield invalid(path, text, "must be no more than 253 characters")


def check_driver(path: str, text: str) -> Errors:
    """A driver's name: a DNS subdomain of at most 63 bytes; upper case is put up with."""
    if not text:
        yield required(path)
        return
    if size(text) > 63:
        yield too_long(path, 63)
    for error in check_subdomain(path, text.lower()):
        yield replace(error, value=text)


def check_pool(path: str, text: str) -> Errors:
    """A pool's name: DNS subdomains with slashes between them."""
    if not text:
        yield required(path)
        return
    if size(text) > 253:
        yield too_long(path, 253)
    for part in text.split("/"):
        yield from check_subdomain(path, part)


def check_c_identifier(path: str, text: str) -> Errors:
    """The name part of an attribute or capacity."""
    if size(text) > 32:
        yield too_long(path, 32)
    if not _C_IDENTIFIER.fullmatch(text):
        yield invalid(path, text, _C_IDENTIFIER_TEXT)


def check_attribute_name(path: str, text: str) -> Errors:
    """`identifier` or `domain/identifier`; names with more slashes pass, as in 1.34 to 1.36."""
    parts = text.split("/")
    if len(parts) == 1:
        yield from check_c_identifier(path, text)
    elif len(parts) == 2:
        domain, name = parts
        if domain:
            yield from check_driver(path, domain)
        else:
            yield invalid(path, "", "the domain must not be empty")
        if name:
            yield from check_c_identifier(path, name)
        else:
            yield invalid(path, "", "the name must not be empty")


def check_full_attribute_name(path: str, text: str) -> Errors:
    """`domain/identifier`: what constraints name."""
    yield from check_attribute_name(path, text)
    if "/" not in text:
        yield invalid(path, text, "a fully qualified name must be a domain and a name separated by a slash")


def check_label_key(path: str, text: str) -> Errors:
    """The key of a label, taint or condition: `name` or `prefix/name`."""
    prefix, slash, name = text.partition("/")
    if "/" in name:
        detail = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        yield invalid(path, text, f"{_QUALIFIED_TEXT.replace('name part', 'a valid label key', 1)} {detail}")
        return
    if not slash:
        prefix, name = "", text
    if slash and not prefix:
        yield invalid(path, text, "prefix part must be non-empty")
    elif slash:
        yield from (invalid(path, text, f"prefix part {error.detail}") for error in check_subdomain(path, prefix))
    if not name:
        yield invalid(path, text, "name part must be non-empty")
    elif size(name) > 63:
        yield invalid(path, text, "name part must be no more than 63 bytes")
    if not _QUALIFIED.fullmatch(name):
        yield invalid(path, text, _QUALIFIED_TEXT)


def check_label_value(path: str, text: str) -> Errors:
    """The value of a label or taint; may be empty."""
    if size(text) > 63:
        yield invalid(path, text, "must be no more than 63 bytes")
    if text and not _QUALIFIED.fullmatch(text):
        yield invalid(path, text, _LABEL_VALUE_TEXT)


def check_uid(path: str, text: str) -> Errors:
    """A uid in lower case, 36 characters."""
    if len(text) != 36:
        yield invalid(path, text, f"error validating uid: invalid UUID length: {len(text)}")
    elif not _UID.fullmatch(text):
        yield invalid(
            path,
            text,
            "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase "
            "hexadecimal characters",
        )


def check_required(path: str, text: str, check: Callable[[str, str], Errors] = check_label) -> Errors:
    """A text that must be there, and its format; by default, that of a DNS label."""
    yield from check(path, text) if text else iter([required(path)])


def check_list(path: str, items: Sequence[T], limit: int, check: Callable[[str, T], Iterable[FieldError]]) -> Errors:
    """Each item by `check`; a list that is too long is only told so."""
    if len(items) > limit:
        yield too_many(path, len(items), limit)
        return
    for index, item in enumerate(items):
        yield from check(f"{path}[{index}]", item)


def check_set(
    path: str,
    items: Sequence[T],
    limit: int,
    check: Callable[[str, T], Iterable[FieldError]],
    key: Callable[[T], Hashable],
) -> Errors:
    """A list whose items' keys are unique."""
    yield from check_list(path, items, limit, check)
    if len(items) > limit:
        return
    seen: set[Hashable] = set()
    for index, item in enumerate(items):
        own = key(item)
        if own in seen:
            yield duplicate(f"{path}[{index}]", own)
        seen.add(own)
