"""The policy and the webhook at the API server that KUBECONFIG names: what it refuses is what the decoder refuses.

A policy counts for the whole cluster, so that of each test has a driver's name of its own; the webhook has the
test's namespace.
"""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import anyio
import msgspec
import pytest

from pydra.admission.config_types import KnownBackend, read_backend
from pydra.admission.policy import build_policy
from pydra.admission.tls import ServedCertificate
from pydra.admission.webhook import PATH, AdmissionMetrics, ReviewService, serve_reviews
from pydra.backends.claim_config import find_config_problems
from tests.integration.admission.certificates import Authority, SecretMount
from tests.integration.api_handle import REAL_KUBECONFIG, ApiHandle, RawClient, Scratch
from tests.unit.admission.configs import CASES, Case, sim
from tests.unit.admission.everything import EVERYTHING
from tests.unit.admission.questions import build_object, entry

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not REAL_KUBECONFIG, reason="KUBECONFIG names no cluster: nothing else evaluates CEL"),
]
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
AT = "spec.devices.config[0].opaque.parameters"
PATIENCE = 30.0
DRY = {"dryRun": "All"}


@asynccontextmanager
async def enforced(client: RawClient, backend: KnownBackend, scratch: Scratch) -> AsyncIterator[KnownBackend]:
    """The backend under the test's own driver name, with its policy at work."""
    known = msgspec.structs.replace(backend, driver=scratch.driver)
    policy = build_policy(known)
    await client.create(POLICIES, policy.policy)
    await client.create(BINDINGS, policy.binding)
    try:
        await wait_until(client, scratch, lambda answer: "denied request" in answer)
        yield known
    finally:
        name = policy.policy["metadata"]["name"]
        await client.request("DELETE", f"{BINDINGS}/{name}")
        await client.request("DELETE", f"{POLICIES}/{name}")


async def wait_until(client: RawClient, scratch: Scratch, said: Callable[[str], bool]) -> None:
    """Wait until a config without apiVersion and kind is refused: the API server takes a while to see what is new."""
    with anyio.fail_after(PATIENCE):
        while not said(await refusal(client, scratch, {"probe": 1})):
            await anyio.sleep(0.1)


async def refusal(client: RawClient, scratch: Scratch, parameters: Any, *, driver: str = "") -> str:
    """What the API server says against a claim with this config; empty when it takes it."""
    body = build_object("resourceclaims", [entry(driver or scratch.driver, parameters)])
    del body["metadata"]["namespace"]
    answer = await client.request("POST", scratch.claims, body, params=DRY)
    if answer.status == 201:
        return ""
    assert answer.status == 422, answer.text
    return str(answer.body["message"])


def without_guesses(problems: tuple[str, ...]) -> str:
    """The decoder's problems as one text, without `did you mean`, which CEL cannot say."""
    text = "; ".join(f"{AT}{problem.removeprefix('$')}" for problem in problems)
    return re.sub(r' \(did you mean "[^"]*"\?\)', "", text)


@pytest.mark.parametrize("backend", ["cpu", "sim", "nvidia", "net"])
async def test_the_policy_says_what_the_decoder_says(api_server: ApiHandle, backend: str) -> None:
    async with (
        api_server.connect() as client,
        api_server.scratch(client) as scratch,
        enforced(client, read_backend(backend), scratch) as known,
    ):
        for case in CASES:
            if case.backend == backend:
                await compare(client, scratch, known, case)


async def compare(client: RawClient, scratch: Scratch, known: KnownBackend, case: Case) -> None:
    said = await refusal(client, scratch, case.parameters)
    if case.right or case.rule:
        assert said == "", case
        return
    assert "resulted in error" not in said
    wanted = find_config_problems(case.parameters, known.types)
    if not case.own_words:
        assert problems_of(said.partition("denied request: ")[2]) == problems_of(without_guesses(wanted)), case


def problems_of(text: str) -> list[str]:
    """In an order of our own: CEL keeps none of an object's fields. What may be null is said where it helps nobody."""
    return sorted(problem.removesuffix(" or null") for problem in text.split("; "))


async def test_a_policy_for_every_kind_of_field_agrees_with_the_decoder_on_whatever_comes(
    api_server: ApiHandle,
) -> None:
    random = Random(20)
    agreed = {True: 0, False: 0}
    async with (
        api_server.connect() as client,
        api_server.scratch(client) as scratch,
        enforced(client, EVERYTHING, scratch) as known,
    ):
        for _ in range(400):
            parameters = {"apiVersion": "all.example.com/v1", "kind": "Everything", **invent(random)}
            said = await refusal(client, scratch, parameters)
            assert "resulted in error" not in said, (parameters, said)
            wanted = find_config_problems(parameters, known.types)
            assert bool(said) is bool(wanted), (parameters, said, wanted)
            agreed[bool(wanted)] += 1
    assert min(agreed.values()) > 50


def invent(random: Random) -> dict[str, Any]:
    """Fields of `Everything`, mostly right, among what the policy can tell."""
    leaf = [
        {"type": "leaf"},
        {"type": "leaf", "n": 2},
        {"type": "leaf", "n": 0},
        {"n": 5},
        {"type": "tree"},
        {"n": "x"},
    ]
    branch = [
        {"type": "branch", "children": []},
        {"type": "branch", "children": [*leaf[:2]]},
        {"type": "branch", "n": 1},
    ]
    right: dict[str, list[Any]] = {
        "mustBe": ["a", ""],
        "colour": ["red", "blue"],
        "number": [1, 2],
        "node": [None, *leaf[:2], *branch[:2]],
        "leaf": [None, leaf[0], leaf[3]],
        "pair": [None, [1, "x"]],
        "names": [[], ["a"], ["a", "b", "c"]],
        "amounts": [{}, {"a": 1}, {"b c": "1.5Gi", "d": "-5e3"}],
        "options": [None, {}, {"fast": True}],
        "mode": ["a", 1, None],
        "even": [0, 4, -2],
        "half": [0.5, 2],
        "odd": ["y", ""],
        "plain": ["a", "a\n"],
        "size": [1, 1.5, "x"],
        "anything": [None, [1, {"a": {}}], {"x": None}],
        "until": [None, "2026-01-01T00:00:00Z"],
        "listed": [None, [1]],
        "tree": [None, {}, {"below": None}],
    }
    wrong = [
        None,
        True,
        0,
        3,
        1.25,
        "",
        "red ",
        "b",
        "10 Gi",
        [],
        ["", "x"],
        [1, 2, 3, 4],
        {},
        {"x": 1},
        *leaf,
        *branch,
    ]
    # What only the decoder can tell must be right here.
    told = [name for name in right if name not in ("until", "listed", "tree", "anything", "half", "odd")]
    found = {name: random.choice(values) for name, values in right.items() if random.random() < 0.6 or name == "mustBe"}
    if random.random() < 0.6:
        name = random.choice([*told, "unknown", "a b"])
        found[name] = random.choice(wrong)
    if random.random() < 0.1:
        del found["mustBe"]
    return found


@pytest.mark.parametrize("version", ["v1", "v1beta1", "v1beta2"])
@pytest.mark.parametrize(
    ("resource", "place"),
    [
        ("resourceclaims", "spec.devices.config"),
        ("resourceclaimtemplates", "spec.spec.devices.config"),
        ("deviceclasses", "spec.config"),
    ],
)
async def test_the_policy_looks_into_every_object_of_every_version(
    api_server: ApiHandle, resource: str, place: str, version: str
) -> None:
    async with api_server.connect() as client, api_server.scratch(client) as scratch:
        if (await client.get(f"/apis/resource.k8s.io/{version}")).status != 200:
            pytest.skip(f"the cluster does not serve resource.k8s.io/{version}")
        async with enforced(client, read_backend("sim"), scratch):
            answer = await create(
                client, scratch, resource, [entry("x.y", {}), entry(scratch.driver, sim(n=1))], version
            )
            assert answer.status == 422
            assert f"{place}[1].opaque.parameters.n: unknown field, allowed: clockMHz, env, sharing" in answer.text


async def create(
    client: RawClient, scratch: Scratch, resource: str, configs: list[Any], version: str = "v1", **params: str
) -> Any:
    body = build_object(resource, configs, version=version)
    body["metadata"] = {"name": scratch.namespace}
    space = "" if resource == "deviceclasses" else f"/namespaces/{scratch.namespace}"
    return await client.request("POST", f"/apis/resource.k8s.io/{version}{space}/{resource}", body, params=params)


async def test_a_class_with_a_config_of_before_stays_updatable_and_takes_no_new_wrong_one(
    api_server: ApiHandle,
) -> None:
    async with api_server.connect() as client, api_server.scratch(client) as scratch:
        wrong = entry(scratch.driver, sim(n=1))
        assert (await create(client, scratch, "deviceclasses", [wrong])).status == 201
        path = f"/apis/resource.k8s.io/v1/deviceclasses/{scratch.namespace}"
        try:
            async with enforced(client, read_backend("sim"), scratch):
                assert (await client.patch(path, {"metadata": {"labels": {"a": "b"}}})).status == 200
                answer = await client.patch(path, {"spec": {"config": [wrong, entry(scratch.driver, sim(m=1))]}})
                assert answer.status == 422
                assert "spec.config[1].opaque.parameters.m: unknown field" in answer.text
                assert "config[0]" not in answer.text
        finally:
            await client.request("DELETE", path)


async def test_the_largest_config_that_the_api_takes_is_within_the_policys_budget(api_server: ApiHandle) -> None:
    async with (
        api_server.connect() as client,
        api_server.scratch(client) as scratch,
        enforced(client, read_backend("sim"), scratch),
    ):
        full = sim(env={f"A{index}": "v" for index in range(930)})
        assert 9_000 < len(msgspec.json.encode(full)) < 10_240
        answer = await create(
            client, scratch, "resourceclaims", [entry(scratch.driver, full) for _ in range(32)], **DRY
        )
        assert answer.status == 201, answer.text[:1000]


async def test_the_webhook_refuses_at_a_real_api_server_with_everything_that_is_wrong(
    api_server: ApiHandle, tmp_path: Path
) -> None:
    authority = Authority()
    mount = SecretMount(tmp_path / "tls", authority.issue())
    served = ServedCertificate(mount.certificate, mount.key)
    served.open()
    metrics = AdmissionMetrics()
    async with api_server.connect() as client, api_server.scratch(client) as scratch:
        drivers = {scratch.driver: read_backend("sim")}
        service = ReviewService(drivers, metrics, read_deadline=5.0)
        async with (
            serve_reviews("127.0.0.1", 0, service, metrics=metrics, tls=served.context) as port,
            configured(client, scratch, port, authority),
        ):
            await wait_until(client, scratch, lambda answer: "denied the request" in answer)
            said = await refusal(client, scratch, sim(n=1, clockMHz=5))
            assert f"{AT}.n: unknown field, allowed: clockMHz, env, sharing; {AT}.clockMHz: found 5" in said
            assert await refusal(client, scratch, sim(clockMHz=200)) == ""
            assert await refusal(client, scratch, {"anything": 1}, driver="other.example.com") == ""
            mount.replace(authority.issue(name="renewed.example.com"))
            await served.renew()
            assert "clockMHz: found 6" in await refusal(client, scratch, sim(clockMHz=6))
    assert metrics.registry.get_sample_value(
        "pydra_admission_reviews_total", {"resource": "resourceclaims", "result": "allowed"}
    )


@asynccontextmanager
async def configured(client: RawClient, scratch: Scratch, port: int, authority: Authority) -> AsyncIterator[None]:
    name = scratch.driver
    rule = {"apiGroups": ["resource.k8s.io"], "apiVersions": ["v1"], "operations": ["CREATE"]}
    await client.create(
        WEBHOOKS,
        {
            "metadata": {"name": name},
            "webhooks": [
                {
                    "name": name,
                    "admissionReviewVersions": ["v1"],
                    "sideEffects": "None",
                    "timeoutSeconds": 10,
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": scratch.namespace}},
                    "rules": [{**rule, "resources": ["resourceclaims"]}],
                    "clientConfig": {
                        "url": f"https://127.0.0.1:{port}{PATH}",
                        "caBundle": base64.b64encode(authority.pem).decode(),
                    },
                }
            ],
        },
    )
    try:
        yield
    finally:
        await client.request("DELETE", f"{WEBHOOKS}/{name}")
