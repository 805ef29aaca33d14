"""The policy as it is written: deterministic, complete, and clear about what it leaves out.

What it decides is tried on a real API server, in tests/integration/admission.
"""

from __future__ import annotations

import re

import msgspec
import pytest
import yaml

from pydra.admission.cel_builder import translate_pattern
from pydra.admission.config_types import KnownBackend, read_backend
from pydra.admission.policy import UNCHECKED, build_policy, write_policy
from tests.unit.admission.everything import EVERYTHING, Everything


@pytest.mark.parametrize("backend", ["sim", "nvidia", "net"])
def test_the_policy_is_yaml_that_says_the_same_each_time(backend: str) -> None:
    known = read_backend(backend)
    policy = build_policy(known)
    text = write_policy(policy, command="pydra policy")
    assert text == write_policy(build_policy(known), command="pydra policy")
    assert list(yaml.safe_load_all(text)) == [policy.policy, policy.binding]
    assert policy.binding["spec"]["policyName"] == policy.policy["metadata"]["name"] == f"opaque-config.{known.driver}"


def test_the_rules_match_all_versions_and_the_writes_that_can_bring_a_config() -> None:
    every = {"apiGroups": ["resource.k8s.io"], "apiVersions": ["v1", "v1beta1", "v1beta2"]}
    assert build_policy(EVERYTHING).policy["spec"]["matchConstraints"]["resourceRules"] == [
        {**every, "operations": ["CREATE", "UPDATE"], "resources": ["deviceclasses"]},
        {**every, "operations": ["CREATE"], "resources": ["resourceclaims", "resourceclaimtemplates"]},
    ]


def expressions(known: KnownBackend) -> dict[str, str]:
    spec = build_policy(known).policy["spec"]
    return {one["name"]: one["expression"] for one in spec["variables"]} | {
        "validation": spec["validations"][0]["expression"],
        "message": spec["validations"][0]["messageExpression"],
    }


@pytest.mark.parametrize("known", [EVERYTHING, *map(read_backend, ("sim", "nvidia", "net"))], ids=lambda one: one.name)
def test_every_bracket_outside_of_strings_has_its_twin(known: KnownBackend) -> None:
    for name, expression in expressions(known).items():
        open_ones: list[str] = []
        for character in re.sub(r'"(\\.|[^"\\])*"', "", expression):
            if character in "([{":
                open_ones.append({"(": ")", "[": "]", "{": "}"}[character])
            elif character in ")]}":
                assert open_ones.pop() == character, name
        assert open_ones == [], name


def test_no_expression_is_so_long_that_an_api_server_cannot_compile_it_within_a_request() -> None:
    """The time grows with the square of the length: one of 71,000 characters took longer than the 34 s of a request."""
    longest = {
        len(one) for name in ("amd", "cpu", "net", "nvidia", "sim") for one in expressions(read_backend(name)).values()
    }
    assert max(longest) <= 25_000


class Tagged(msgspec.Struct, tag_field="type", tag="fast"):
    lists: list[int] = []
    objects: dict[str, int] = {}


def test_the_tag_of_a_config_is_checked_once_however_many_parts_its_check_has() -> None:
    known = KnownBackend(name="tagged", driver="tagged.example.com", types={"a.example.com/v1/Tagged": Tagged})
    assert "\n".join(expressions(known).values()).count(".type: found") == 1


def test_every_field_is_looked_at_and_what_is_allowed_is_said() -> None:
    check = "\n".join(expressions(EVERYTHING).values())
    for field in msgspec.structs.fields(Everything):
        assert f'["{field.encode_name}"]' in check or field.encode_name in ("anything", "listed")
    for words in (
        ".mustBe: missing, allowed: a string",
        'allowed: \\"red\\", \\"blue\\"',
        "allowed: a number > 0 and < 1000",
        "a list of at most 3 entries",
        "a list of exactly 2",
        "an integer a multiple of 2",
        'matches("^a\\\\z")',
        "isQuantity(",
        '.node.type: missing, allowed: \\"branch\\", \\"leaf\\"',
        "unknown field, allowed: fast",
    ):
        assert words in check, words
    assert "an integer or a string" not in check, "quantities are called so, as by the webhook"


def test_what_cel_cannot_tell_is_listed_where_admins_and_tools_read_it() -> None:
    policy = build_policy(EVERYTHING)
    assert policy.unchecked == (
        "Everything: rules between its fields, which the backend has in code",
        "Everything.half: a multiple of 0.5",
        "Everything.odd: the pattern ^(?!x), which CEL's regular expressions do not have",
        "Everything.until: that it is a datetime",
        "Everything.listed: a list whose positions are fields",
        "Everything.tree.below: it is a Tree within itself, to any depth",
    )
    assert policy.policy["metadata"]["annotations"][UNCHECKED].splitlines() == list(policy.unchecked)
    comment = write_policy(policy, command="pydra policy --backend all")
    assert all(f"#  - {one}\n" in comment for one in policy.unchecked)
    assert comment.startswith("# Written by `pydra policy --backend all`")


def test_a_backend_without_configs_refuses_every_config_of_its_driver() -> None:
    policy = build_policy(KnownBackend(name="bare", driver="bare.example.com", types={}))
    check = {one["name"]: one["expression"] for one in policy.policy["spec"]["variables"]}
    assert "allowed (apiVersion/kind): none, this backend takes no configuration" in check["headers"]
    assert check["problems"] == "variables.headers"
    assert "annotations" not in policy.policy["metadata"]


@pytest.mark.parametrize(
    ("pattern", "translated"),
    [
        ("^[a-z]+$", r"^[a-z]+\z"),
        ("a|b$", r"a|b\z"),
        ("^(a$|b)$", r"^(a\z|b)\z"),
        (r"^\d+\.\d{1,3}$", r"^\p{Nd}+\.\p{Nd}{1,3}\z"),
        (r"^[\w.-]*", r"^[\p{L}\p{N}_.-]*"),
        (r"\s", r"[\s\x0b\x1c-\x1f\x85\p{Z}]"),
        (r"^[]$]\]", r"^[]$]\]"),
        (r"^[^]x]$", r"^[^]x]\z"),
        ("(?:x)?y*?", "(?:x)?y*?"),
        ("é{2}", "é{2}"),
        ("[(?=]", None),
        ("a{1001}", None),
        ("a{,3}", None),
        ("a++", None),
        ("(?=x)", None),
        ("(?P<n>x)", None),
        ("(?i)x", None),
        (r"(a)\1", None),
        (r"\bword\b", None),
        (r"x\Z", None),
        ("(a$)b", r"(a\z)b"),
        ("[[:alpha:]]", None),
    ],
)
def test_a_pattern_means_the_same_or_is_not_written(pattern: str, translated: str | None) -> None:
    assert translate_pattern(pattern) == translated
