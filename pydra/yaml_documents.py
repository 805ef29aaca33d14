"""Decodes YAML, and JSON as a part of it, to values whose texts are valid Unicode. Costs 4 MiB when imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import yaml
from yaml.constructor import ConstructorError

T = TypeVar("T")

_ERRORS = (yaml.YAMLError, ValueError, KeyError, AttributeError, RecursionError)
"""PyYAML raises the last four for values such as 2026-13-45, `!!bool x` and ten thousand brackets."""


class NotYaml(ValueError):
    """The bytes are not YAML; the message is one line."""


class _Loader(yaml.SafeLoader):
    def construct_scalar(self, node: Any) -> Any:
        value = super().construct_scalar(node)
        if isinstance(value, str) and not value.isascii():
            try:  # JSON writes what is beyond U+FFFF as a pair of surrogates, which PyYAML takes for two characters
                return value.encode("utf-16", "surrogatepass").decode("utf-16")
            except UnicodeDecodeError as error:
                text = "an unpaired surrogate, which is not valid Unicode"
                raise ConstructorError(None, None, text, node.start_mark) from error
        return value


def decode_yaml(content: bytes) -> Any:
    """Decode the only document; None if there is none. Raises NotYaml."""
    return _decode(yaml.load, content)


def decode_yaml_documents(content: bytes) -> list[Any]:
    """Decode all documents. Raises NotYaml."""
    return _decode(lambda *given: list(yaml.load_all(*given)), content)


def _decode(load: Callable[[bytes, type[_Loader]], T], content: bytes) -> T:
    try:
        return load(content, _Loader)
    except _ERRORS as error:
        raise NotYaml(" ".join(str(error).split())) from error
