"""A ValidatingAdmissionPolicy that judges one driver's opaque configs, and its binding, as YAML. Pure.

The policy judges like the webhook: all faults in one message, each with its path, and nothing that was stored before.
Sources: k8s.io/api/admissionregistration/v1; a message is one line of at most 5 KiB (MaxEvaluatedMessageExpression-
SizeBytes), an expression may cost 1,000,000 and a binding 10,000,000 (k8s.io/apiserver/pkg/apis/cel/config.go).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import msgspec
from msgspec import inspect as mi

from pydra.admission.cel.checks import Checks
from pydra.admission.cel.text import NOTHING, Path, choose, gather, let, problem, quote, show
from pydra.admission.known import KnownBackend
from pydra.admission.places import OPERATIONS, PLACES, build_rules
from pydra.backends.mismatches import read_type

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
    """The policy for the backend's kinds of config. The same types give the same bytes."""
    checks = Checks()
    variables = [*_places(backend), *_verdicts(backend, checks)]
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
    """Where the configs are, and those of our driver that the stored object does not have already.

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


def _verdicts(backend: KnownBackend, checks: Checks) -> Iterator[tuple[str, str]]:
    """A variable for each kind, with what is wrong in its configs, and one with all of it."""
    names = ["headers"]
    yield "headers", _per_config("true", _header(sorted(backend.types)))
    for index, kind in enumerate(sorted(backend.types)):
        api_version, _, word = kind.rpartition("/")
        ours = (
            f'config.parameters.?apiVersion.orValue("") == {quote(api_version)}'
            f' && config.parameters.?kind.orValue("") == {quote(word)}'
        )
        wanted = cast("mi.StructType", read_type(backend.types[kind]))
        check = checks.fields(wanted, "config.parameters", Path(("config.at",)), word, header=("apiVersion", "kind"))
        names.append(f"kind{index}")
        yield names[-1], _per_config(ours, check)
    yield "problems", " + ".join(f"variables.{name}" for name in names)


def _per_config(condition: str, check: str) -> str:
    body = check.replace("\n", "\n  ")
    return f'variables.configs.map(config, {condition},\n  {body}\n).join("")'


def _header(kinds: list[str]) -> str:
    """Whether apiVersion and kind name a type; worded as `pydra.backends.config` does, without a guess."""
    allowed = ", ".join(kinds) or "none, this backend takes no configuration"
    at, ends = Path(("config.at",)), f", allowed (apiVersion/kind): {allowed}"
    absent = [
        choose(f"{quote(name)} in config.parameters", NOTHING, problem(at.then(f".{name}: missing{ends}")))
        for name in ("apiVersion", "kind")
    ]
    values = {
        "apiVersion": {kind.rpartition("/")[0] for kind in kinds},
        "kind": {kind.rpartition("/")[2] for kind in kinds},
    }
    wrong = []
    for name, known in values.items():
        listed = ", ".join(map(quote, sorted(known)))
        said = problem(at.then(f".{name}: found ").then_cel(show("v")).then(ends))
        wrong.append(let("v", f"config.parameters[{quote(name)}]", choose(f"v in [{listed}]", NOTHING, said)))
    listed = ", ".join(map(quote, kinds))
    said = problem(at.then(': found "').then_cel("pair").then(f'"{ends}'))
    unknown = let("found", gather(wrong), choose(f"found == {NOTHING}", said, "found"))
    both = '"%s/%s".format([config.parameters["apiVersion"], config.parameters["kind"]])'
    pair = let("pair", both, choose(f"pair in [{listed}]", NOTHING, unknown))
    return choose('"apiVersion" in config.parameters && "kind" in config.parameters', pair, gather(absent))


def _message() -> str:
    """One line, without the separator that the first problem begins with."""
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
