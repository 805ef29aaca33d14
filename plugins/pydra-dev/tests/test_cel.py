"""CEL selectors as kube-apiserver and kube-scheduler read them: what they select, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from pydra_dev.api import schema
from pydra_dev.cel.environment import (
    CelFeatures,
    CompileError,
    EvaluationError,
    Selector,
    build_variables,
    compile_selector,
)

DRIVER = "dra.example.com"
DEVICE: dict[str, Any] = {
    "name": "gpu-0",
    "attributes": {
        "name": {"bool": True},
        "index": {"int": 3},
        "model": {"string": "asymmetric"},
        "driverVersion": {"version": "1.10.0-rc.1"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
    },
    "capacity": {"memory": {"value": "80Gi"}},
}
OWN, CAPACITY = f'device.attributes["{DRIVER}"]', f'device.capacity["{DRIVER}"]'


def evaluate(selector: Selector, **device: Any) -> bool:
    parsed = schema.parse_fields("Device", schema.Device, {**DEVICE, **device})
    return selector.matches(build_variables(DRIVER, parsed))


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("true", True),
        ('device.driver == ""', False),
        (f'device.driver == "{DRIVER}"', True),
        ("device.allowMultipleAllocations == true", False),
        ('"no-such-domain" in device.attributes', False),
        (f'"{DRIVER}" in device.attributes', True),
        (f"{OWN}.name", True),
        (f'{OWN}["name"]', True),
        (f'cel.bind(dra, device.attributes["{DRIVER}"], dra.name)', True),
        (f"{OWN}.index > 0", True),
        (f'{OWN}.model == "fish"', False),
        (f'{OWN}.driverVersion.isGreaterThan(semver("0.0.1"))', True),
        (f'{OWN}.driverVersion.isGreaterThan(semver("v0.0.1", true)) && isSemver("v1.0.0", true)', True),
        (f'{CAPACITY}.memory.isGreaterThan(quantity("1Ki"))', True),
        (f'"memory" in {CAPACITY} && {CAPACITY}.memory.isGreaterThan(quantity("1Ki"))', True),
        (f'!("other" in {CAPACITY}) || {CAPACITY}.other.isGreaterThan(quantity("1Ki"))', True),
        (f'device.attributes.exists_one(x, x == "{DRIVER}")', True),
        (f'{OWN}.exists_one(x, x == "services")', False),
        (f'{OWN}.model.split("example").size() >= 2', False),
        (f'{OWN}.model.matches("[^a]?sym")', True),
    ],
)
def test_a_selector_selects_what_it_does_in_kubernetes(expression: str, result: bool) -> None:
    assert evaluate(compile_selector(expression)) == result


@pytest.mark.parametrize(
    "expression",
    [
        # A domain that no attribute has is an empty map, wherever it is looked up.
        '!("x" in device.attributes["none"]) && !has(device.attributes["none"].x)',
        'device.attributes["none"].?x.orValue(true)',
        'device.attributes[?"none"].hasValue() && !device.attributes[?"none"].?x.hasValue()',
        "has(device.attributes.none) && device.attributes.none == {} && device.attributes.?none.hasValue()",
        "size(device.attributes) == 2 && device.attributes.all(d, device.attributes[d].size() > 0)",
        'cel.bind(all, device.attributes, all["none"] == {})',
        # One side that decides makes the other's error irrelevant.
        f"{OWN}.none == 1 || {OWN}.name",
        f"!({OWN}.none == 1 && false)",
        # Types.
        f"{OWN}.index < 3.5 && {OWN}.index in [1, 2, 3] && 1 < 1.5",
        f'{OWN}.driverVersion == semver("1.10.0-rc.1+build") && {OWN}.driverVersion.isLessThan(semver("1.10.0"))',
        'semver("1.2.3").major() == 1 && semver("v1.2", true) == semver("1.2.0") && !isSemver("01.2.3")',
        f'{CAPACITY}.memory == quantity("81920Mi") && {CAPACITY}.memory.compareTo(quantity("80G")) == 1',
        'quantity("50k").add(quantity("20k")) == quantity("70k") && quantity("50k").sub(20).asInteger() == 49980',
        'sign(quantity("-1")) == -1 && !quantity("1500m").isInteger() && quantity("1500m").asApproximateFloat() == 1.5',
        'isQuantity("1.3Gi") && !isQuantity("200K")',
        # Lists, sets, strings, regular expressions, optional values and comprehensions with two variables.
        "[1, 2].sum() == 3 && [2.5, 1.5].min() == 1.5 && [1, 2].max() == 2 && [1, 2, 2].isSorted()",
        "[1, 2, 1].indexOf(1) == 0 && [1, 2, 1].lastIndexOf(1) == 2 && [1].indexOf(2) == -1",
        "[3, 1].sort() == [1, 3] && [1, 1].distinct() == [1] && [1, 2, 3].slice(0, 2) == [1, 2]",
        "[[1]].flatten() == [1] && 'abc'.indexOf('c') == 2",
        "sets.contains([1, 2], [2]) && sets.intersects([1], [1, 3]) && sets.equivalent([1, 2], [2, 1])",
        '"a-1-b2".find("[0-9]") == "1" && "a-1-b2".findAll("[0-9]") == ["1", "2"] && "12".findAll("[0-9]", 1) == ["1"]',
        '"A,b".lowerAscii().split(",") == ["a", "b"] && "abc".substring(1) == "bc"',
        "optional.of(1).hasValue() && optional.none().orValue(2) == 2",
        "[5, 6].all(i, v, v == i + 5) && {'a': 1}.transformList(k, v, k) == ['a']",
    ],
)
def test_what_kubernetes_adds_to_cel_is_there(expression: str) -> None:
    assert evaluate(compile_selector(expression)) is True


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("?!", "compilation failed: .*Syntax error"),
        ("1", "must evaluate to bool or the unknown type, not int"),
        ("device.none == 1", "undefined field 'none'"),
        ("undefined.x", "undeclared reference to 'undefined"),
        ("device.driver == 3", r"no matching overload for '_==_' applied to '\(string, int\)'"),
        (f"{CAPACITY}.memory > 3", r"no matching overload for '_>_' applied to '\(kubernetes.Quantity, int\)'"),
        (f"{OWN}.name.exists(x, x > 0)", "expression of type 'any' cannot be the range of a comprehension"),
        ('[1, "a"] == [1]', "expected type 'int' but found 'string'"),
        (f'{OWN}.model.matches("(")', "invalid regular expression"),
        (f'{OWN}.model.find("(?=x)") == ""', "invalid regular expression"),
        (f'{OWN}.name.includes("fish")', "undeclared reference to 'includes'"),
    ],
)
def test_what_kubernetes_would_not_store_does_not_compile(expression: str, why: str) -> None:
    with pytest.raises(CompileError, match=why):
        compile_selector(expression)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        (f"{OWN}.none == 1", "no such key: none"),
        ('device.attributes["other.example.com"].model == "x"', "no such key: model"),
        (f"{OWN}.model", "CEL result of type string could not be converted to bool"),
        (f"{OWN}.model > 3", "no such overload"),
        (f"{OWN}.driverVersion >= '500'", r"no such overload: _>=_\(semver, string\)"),
        (f'{OWN}.index.isGreaterThan(quantity("1"))', "no such overload"),
        (f'{OWN}.driverVersion.isGreaterThan(quantity("1"))', "no such overload"),
        ('quantity("lots").isGreaterThan(quantity("1"))', "'lots' is not a quantity"),
        ('semver("v1").major() == 1', "'v1' is not a semantic version"),
        ('quantity("1500m").asInteger() == 1', "cannot convert value to integer"),
        (f"{OWN}.model.matches({OWN}.model + '(')", "invalid regular expression"),
        (f"{OWN}.model.find({OWN}.model + '(') == ''", "illegal regex"),
    ],
)
def test_what_cannot_be_evaluated_for_a_device_is_an_error(expression: str, why: str) -> None:
    with pytest.raises(EvaluationError, match=why):
        evaluate(compile_selector(expression))


def test_attributes_can_be_lists_where_that_feature_is_on() -> None:
    attributes = {"ports": {"ints": [1, 2]}, "versions": {"versions": ["1.0.0"]}, "index": {"int": 1}}
    for expression in (
        f"{OWN}.ports.exists(p, p > 1) && 2 in {OWN}.ports",
        f'{OWN}.versions.all(v, v.isLessThan(semver("2.0.0")))',
        f"{OWN}.ports.includes(1) && {OWN}.index.includes(1) && !{OWN}.ports.includes(3)",
    ):
        assert evaluate(compile_selector(expression, CelFeatures(lists=True)), attributes=attributes) is True


@pytest.mark.parametrize(
    "expression",
    [
        'ip("192.168.0.1").family() == 4 && ip("fd00::1").family() == 6',
        'isIP("::1") && !isIP("127.0.0.01") && !isIP("::ffff:1.2.3.4") && !isIP("fe80::1%eth0")',
        'ip.isCanonical("fd00::1") && !ip.isCanonical("fd00:0::1")',
        'ip("127.0.0.1").isLoopback() && ip("::").isUnspecified() && ip("10.0.0.1").isGlobalUnicast()',
        'ip("224.0.0.7").isLinkLocalMulticast() && ip("ff02::1").isLinkLocalMulticast()',
        'ip("169.254.1.1").isLinkLocalUnicast() && !ip("255.255.255.255").isGlobalUnicast()',
        'cidr("10.1.2.3/16").containsIP("10.1.9.9") && cidr("10.0.0.0/8").containsIP(ip("10.9.9.9"))',
        'cidr("10.0.0.0/8").containsCIDR("10.1.0.0/16") && !cidr("10.1.0.0/16").containsCIDR(cidr("10.0.0.0/8"))',
        'cidr("10.1.2.3/16").ip() == ip("10.1.2.3") && cidr("10.1.2.3/16").prefixLength() == 16',
        'cidr("10.1.2.3/16").masked() == cidr("10.1.0.0/16") && !cidr("::/0").containsIP("1.2.3.4")',
        'isCIDR("::/0") && !isCIDR("10.0.0.0") && !isCIDR("10.0.0.0/33") && !isCIDR("10.0.0.0/08")',
    ],
)
def test_urls_and_addresses_are_read_as_by_kubernetes(expression: str) -> None:
    assert evaluate(compile_selector(expression)), expression


def test_addresses_have_types() -> None:
    for expression in ('ip("::1") > 3', 'cidr("::/0").family() == 6', "ip(3) == ip(3)"):
        with pytest.raises(CompileError):
            compile_selector(expression)
    with pytest.raises(EvaluationError, match="zone"):
        evaluate(compile_selector('ip("fe80::1%eth0").family() == 6'))
