"""The part of CEL that is evaluated, and how the rest is refused."""

from __future__ import annotations

from typing import Any

import pytest

from pydra_dev import schema
from pydra_dev.expressions import EvaluationError, UnsupportedExpressionError, compile_expression

DEVICE: dict[str, Any] = {
    "name": "gpu-0",
    "attributes": {
        "model": {"string": "H100"},
        "index": {"int": 3},
        "healthy": {"bool": True},
        "driverVersion": {"version": "1.10.0-rc.1"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
        "ports": {"ints": [1, 2]},
    },
    "capacity": {"memory": {"value": "80Gi"}},
}
OWN = 'device.attributes["gpu.example.com"]'


def evaluate(expression: str, **device: Any) -> bool:
    parsed = schema.parse_fields("Device", schema.Device, {**DEVICE, **device})
    return compile_expression(expression)("gpu.example.com", parsed)


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("true", True),
        ('device.driver == "gpu.example.com"', True),
        ("device.driver != 'gpu.example.com'", False),
        (f'{OWN}.model == "H100" && {OWN}.index >= 3', True),
        (f'{OWN}["model"].startsWith("H")', True),
        (f'{OWN}.model in ["A100", "H100"]', True),
        (f"2 in {OWN}.ports", True),
        (f"{OWN}.healthy && !({OWN}.index < 0)", True),
        (f'{OWN}.driverVersion.isGreaterThan(semver("1.9.9"))', True),
        (f'{OWN}.driverVersion.isLessThan(semver("1.10.0"))', True),
        ('device.attributes["resource.kubernetes.io"].pcieRoot.matches("^pci[0-9]{4}")', True),
        ('device.capacity["gpu.example.com"].memory.compareTo(quantity("81920Mi")) == 0', True),
        ('device.capacity["gpu.example.com"].memory.isGreaterThan(quantity("80G"))', True),
        ('"memory" in device.capacity["gpu.example.com"]', True),
        ('"other.example.com" in device.attributes', False),
        ('"x" in device.attributes["other.example.com"]', False),
        ("device.allowMultipleAllocations", False),
        ("1 == 1.0 && true != false", True),
        ('1 == "1"', False),
        ("true == 1", False),
        ("-1 < 0", True),
        ('"a\\"b" == "a\\"b"', True),
    ],
)
def test_the_known_part_of_cel_is_evaluated(expression: str, result: bool) -> None:
    assert evaluate(expression) is result


@pytest.mark.parametrize(
    ("expression", "result"),
    [(f'{OWN}.none == 1 || device.driver == "gpu.example.com"', True), (f"{OWN}.none == 1 && false", False)],
)
def test_a_side_that_decides_makes_the_other_s_error_irrelevant(expression: str, result: bool) -> None:
    assert evaluate(expression) is result


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        (f"{OWN}.none == 1", "no such key: none"),
        ('device.attributes["other.example.com"].model == "x"', "no such key: model"),
        (f"{OWN}.model", "not a boolean"),
        (f"{OWN}.model > 3", "no such overload"),
        (f"!{OWN}.model", "no such overload"),
        (f"{OWN}.none == 1 || {OWN}.healthy == false", "no such key"),
        (f'{OWN}.model.compareTo(quantity("1")) == 0', "no such overload"),
        ('quantity("lots").isGreaterThan(quantity("1"))', "is not a quantity"),
        ('semver("v1").isGreaterThan(semver("1.0.0"))', "not a semantic version"),
        (f'{OWN}.model.matches("(")', "not a regular expression"),
    ],
)
def test_what_cannot_be_evaluated_is_an_error(expression: str, why: str) -> None:
    with pytest.raises(EvaluationError, match=why):
        evaluate(expression)


@pytest.mark.parametrize(
    ("expression", "what"),
    [
        ("device.attributes.exists(d, true)", "exists()"),
        ("true ? true : false", "'?'"),
        ("has(device.driver)", "'has'"),
        (f"{OWN}.?model.orValue(1) == 1", "'.?'"),
        ("1 + 1 == 2", "'+'"),
        ("device.driver ==", "the end"),
        ("", "the end"),
        ("(true", "the end"),
        ("device.driver == #", "cannot read"),
    ],
)
def test_the_rest_of_cel_is_refused_by_name(expression: str, what: str) -> None:
    with pytest.raises(UnsupportedExpressionError) as caught:
        compile_expression(expression)
    assert what in str(caught.value)
