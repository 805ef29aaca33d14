"""A backend that breaks the contract hears everything that is wrong, before anything runs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from pydra.backends.check import find_coroutine_violations, find_methods, find_object_violations
from pydra.backends.wire import Method


class Config(msgspec.Struct):
    n: int = 0


class Unresolvable(msgspec.Struct):
    n: Nowhere  # type: ignore[name-defined]  # noqa: F821


async def nothing() -> None: ...
async def with_claim(claim: Any, /) -> None: ...
async def with_prepared(claim: Any, prepared: Any, /) -> None: ...
async def generating() -> AsyncIterator[int]:
    yield 1


def plain() -> None: ...


@contextlib.asynccontextmanager
async def connecting() -> AsyncIterator[Any]:
    yield None


def backend(**changes: Any) -> Any:
    parts: dict[str, Any] = {"discover": nothing, "prepare": with_claim, "unprepare": with_prepared}
    return SimpleNamespace(**{name: part for name, part in (parts | changes).items() if part is not ...})


class Callable:
    async def __call__(self) -> None: ...


@pytest.mark.parametrize(
    "good",
    [
        backend(),
        backend(wait_changed=nothing, measure=Callable()),
        backend(DRIVER="gpu.example.com", CONFIG_TYPES={"gpu.example.com/v1/C": Config}, DEVICE_CLASSES={"gpu.x": {}}),
        SimpleNamespace(connect=connecting),
    ],
    ids=["required", "optional", "constants", "connect"],
)
def test_a_backend_that_keeps_the_contract_has_no_violations(good: Any) -> None:
    assert find_object_violations(good) == ()


@pytest.mark.parametrize(
    ("bad", "violations"),
    [
        (backend(discover=..., discoverr=nothing), ['discover is missing (did you mean "discoverr"?); write']),
        (backend(prepare=plain), ["prepare is a plain function, not a coroutine", "prepare() cannot be called as"]),
        (backend(measure=generating), ["measure is an async generator"]),
        (backend(unprepare=with_claim), ["cannot be called as unprepare(claim, prepared): too many positional"]),
        (backend(wait_changed=3), ["wait_changed is a int, not a coroutine"]),
        (backend(DRIVER="Gpu_Example"), ['DRIVER is "Gpu_Example"; it must be a DNS subdomain']),
        (backend(DRIVER=3), ["DRIVER is a int"]),
        (backend(CONFIG_TYPES=[]), ["CONFIG_TYPES is a list"]),
        (backend(CONFIG_TYPES={"K": dict}), ["CONFIG_TYPES has the key 'K'", "CONFIG_TYPES['K'] is not a msgspec"]),
        (backend(CONFIG_TYPES={"g/v1/K": Unresolvable}), ["cannot be decoded into: name 'Nowhere' is not defined"]),
        (backend(DEVICE_CLASSES={"UP": {"n": 1}}), ["DEVICE_CLASSES has the key 'UP'"]),
        (backend(DEVICE_CLASSES={"a.b": {"n": object()}}), ["DEVICE_CLASSES['a.b'].n is a object, which is not JSON"]),
        (SimpleNamespace(connect=nothing), ["connect is a coroutine or generator; put @contextlib"]),
        (SimpleNamespace(connect=3), ["connect is a int"]),
        (
            SimpleNamespace(DRIVER="-"),
            ["discover is missing", "prepare is missing", "unprepare is missing", 'DRIVER is "-"'],
        ),
    ],
)  # fmt: skip
def test_all_violations_are_told_at_once(bad: Any, violations: list[str]) -> None:
    found = find_object_violations(bad)
    assert len(found) == len(violations)
    assert all(wanted in one for wanted, one in zip(violations, found, strict=True)), found


def test_what_connect_yields_needs_the_coroutines() -> None:
    assert len(find_coroutine_violations(SimpleNamespace())) == 3
    assert find_coroutine_violations(backend()) == ()


def test_the_coroutines_that_are_there_are_the_methods() -> None:
    assert find_methods(backend(measure=nothing)) == (
        Method.DISCOVER,
        Method.PREPARE,
        Method.UNPREPARE,
        Method.MEASURE,
    )
