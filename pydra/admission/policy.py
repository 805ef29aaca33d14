"""Generates a ValidatingAdmissionPolicy and its binding, which check a driver's opaque configs.

The policy decides like the webhook: one message has all problems, each with its path, and what was stored before
passes. Each type is translated to CEL that reports the same problems, with the same texts, as
`pydra.backends.type_mismatches`; what CEL cannot check is left to the webhook and the node, and an annotation lists it.

Sources: k8s.io/api/admissionregistration/v1; a message is one line of at most 5 KiB (MaxEvaluatedMessageExpression-
SizeBytes), an expression may cost 1,000,000 and a binding 10,000,000 (k8s.io/apiserver/pkg/apis/cel/config.go).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import msgspec
from msgspec import inspect as mi

from pydra.admission.cel_builder import NOTHING, Path, choose, gather, let, problem, quote, show
from pydra.admission.config_type_to_cel import Checks, Value
from pydra.admission.config_types import KnownBackend
from pydra.admission.review import OPERATIONS, PLACES, build_rules
from pydra.backends.claim_config import describe_kinds
from pydra.backends.type_mismatches import read_type

UNCHECKED = "pydra.dev/unchecked"
"""The annotation that lists what the policy leaves to the webhook, or to the node."""

_MOST_SHOWN = 1200
"""Characters of a message: within the limit even if each took four bytes."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The two objects, and what the policy cannot check."""

    policy: dict[str, Any]
    binding: dict[str, Any]
    unchecked: tuple[str, ...]


def build_policy(backend: KnownBackend) -> Policy:
    """Return the policy for the backend's kinds of config. Deterministic."""
    checks = Checks()
    variables = [*_places(backend), *_problem_variables(backend, checks)]
    name = f"opaque-config.{backend.driver}"
    unchecked = tuple(checks.unchecked)
    annotations = {"annotations": {UNCHECKED: "\n".join(unchecked)}} if unchecked else {}
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name, **annotations},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "matchPolicy": "Equivalent",
                "resourceRules": build_rules(),
            },
            "variables": [{"name": key, "expression": expression} for key, expression in variables],
            "validations": [
                {
                    "expression": f"variables.problems == {NOTHING}",
                    "message": f"the opaque config for {backend.driver} is wrong",
                    "messageExpression": _message(),
                }
            ],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
    return Policy(policy=policy, binding=binding, unchecked=unchecked)


def _places(backend: KnownBackend) -> Iterator[tuple[str, str]]:
    """Yield the variables for the place of the configs, and for the driver's configs that are not yet stored.

    Objects are dyn: the type checker of policies knows the three kinds apart, and would warn of each other's fields.
    """
    yield "resource", "request.resource.resource"
    place = entries = stored = ""  # what was stored matters where an update can bring a config
    for resource, way in PLACES.items():
        test = f"variables.resource == {quote(resource)} ? "
        fields = ".?".join(way)
        place += f"{test}{quote('.'.join(way))}\n: "
        entries += f"{test}dyn(object).?{fields}.orValue([])\n: "
        if "UPDATE" in OPERATIONS[resource]:
            stored += f"{test}dyn(oldObject).?{fields}.orValue([])\n: "
    yield "place", f"{place}{NOTHING}"
    yield "entries", f"{entries}[]"
    yield "stored", f"oldObject == null ? []\n: {stored}[]"
    opaque = "has(entry.opaque) && has(entry.opaque.driver)"
    yield "known", f"variables.stored.map(entry, {opaque}, entry.opaque)"
    ours = f"{opaque} && entry.opaque.driver == {quote(backend.driver)} && !(entry.opaque in variables.known)"
    at = 'variables.place + "[" + string(index) + "].opaque.parameters"'
    found = f'{{"at": dyn({at}), "parameters": dyn(has(entry.opaque.parameters) ? entry.opaque.parameters : {{}})}}'
    yield "configs", f"variables.entries.transformList(index, entry,\n  {ours},\n  {found}\n)"


def _problem_variables(backend: KnownBackend, checks: Checks) -> Iterator[tuple[str, str]]:
    """Yield a variable for each kind with the problems of its configs, and one with all problems."""
    names = ["headers"]
    yield "headers", _per_config("true", _header(sorted(backend.types)))
    kinds: dict[type, list[str]] = {}  # a type has one check, whatever it is called
    for kind in sorted(backend.types):
        kinds.setdefault(backend.types[kind], []).append(kind)
    for index, (type_, called) in enumerate(kinds.items()):
        wanted = cast("mi.StructType", read_type(type_))
        name = called[-1].rpartition("/")[2] or wanted.cls.__name__
        value = Value("config.parameters", Path(("config.at",)), name)
        for part, check in enumerate(checks.parts(wanted, value, ("apiVersion", "kind"))):
            if check != NOTHING:
                names.append(f"kind{index}part{part}")
                yield names[-1], _per_config(_is_called(called), check)
    yield "problems", " + ".join(f"variables.{name}" for name in names)


def _is_called(kinds: list[str]) -> str:
    """Build the test for a config that has one of these as its apiVersion and kind."""
    tests = []
    for kind in kinds:
        api_version, _, word = kind.rpartition("/")
        tests.append(
            f'(config.parameters.?apiVersion.orValue("") == {quote(api_version)}'
            f' && config.parameters.?kind.orValue("") == {quote(word)})'
            if kind
            else '(!("apiVersion" in config.parameters) && !("kind" in config.parameters))'
        )
    return " || ".join(tests)


def _per_config(condition: str, check: str) -> str:
    body = check.replace("\n", "\n  ")
    return f'variables.configs.map(config, {condition},\n  {body}\n).join("")'


def _header(kinds: list[str]) -> str:
    """Build the check of apiVersion and kind, with the texts of `pydra.backends.claim_config`, without a suggestion."""
    at, ends = Path(("config.at",)), f", allowed (apiVersion/kind): {describe_kinds(kinds)}"
    absent = [
        choose(f"{quote(name)} in config.parameters", NOTHING, problem(at.then(f".{name}: missing{ends}")))
        for name in ("apiVersion", "kind")
    ]
    named = [kind for kind in kinds if kind]
    values = {
        "apiVersion": {kind.rpartition("/")[0] for kind in named},
        "kind": {kind.rpartition("/")[2] for kind in named},
    }
    wrong = []
    for name, known in values.items():
        listed = ", ".join(map(quote, sorted(known)))
        said = problem(at.then(f".{name}: found ").then_cel(show("v")).then(ends))
        wrong.append(let("v", f"config.parameters[{quote(name)}]", choose(f"v in [{listed}]", NOTHING, said)))
    listed = ", ".join(map(quote, named))
    said = problem(at.then(': found "').then_cel("pair").then(f'"{ends}'))
    unknown = let("found", gather(wrong), choose(f"found == {NOTHING}", said, "found"))
    both = '"%s/%s".format([config.parameters["apiVersion"], config.parameters["kind"]])'
    pair = let("pair", both, choose(f"pair in [{listed}]", NOTHING, unknown))
    check = choose('"apiVersion" in config.parameters && "kind" in config.parameters', pair, gather(absent))
    if versions := [kind[:-1] for kind in named if kind.endswith("/")]:
        listed = ", ".join(map(quote, versions))
        without = f'!("kind" in config.parameters) && config.parameters.?apiVersion.orValue("") in [{listed}]'
        check = choose(without, NOTHING, check)
    if "" not in kinds:
        return check
    return choose('!("apiVersion" in config.parameters) && !("kind" in config.parameters)', NOTHING, check)


def _message() -> str:
    """Return one line, without the separator before the first problem."""
    text = 'variables.problems.substring(2).replace("\\n", "\\\\n")'
    return choose(f"size(variables.problems) > {_MOST_SHOWN}", f'{text}.substring(0, {_MOST_SHOWN - 8}) + " ..."', text)


def write_policy(policy: Policy, *, command: str) -> str:
    """YAML of both objects, below a comment that says where it is from and what it leaves out."""
    import yaml  # noqa: PLC0415 - costs memory, and nothing else of admission needs it

    class Dumper(yaml.SafeDumper):
        """Expressions are written as they are read: over several lines."""

        def ignore_aliases(self, data: object) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, data: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)

    Dumper.add_representer(str, text)
    lines = [f"# Written by `{command}` from the types of the backend: change those, not this."]
    if policy.unchecked:
        lines += [
            "#",
            "# Not checked here, but by the webhook and on the node:",
            *(f"#  - {one}" for one in policy.unchecked),
        ]
    documents = (policy.policy, policy.binding)
    body = "---\n".join(
        yaml.dump(one, Dumper=Dumper, sort_keys=False, width=10**6, allow_unicode=True) for one in documents
    )
    return "\n".join(lines) + "\n" + body
