"""Calls of the kubelet over a real socket, by gRPC's C core."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from pydra.claim import ClaimRef, ContainerDevice, PrepareOutcome
from pydra.errors import ClaimError, DeviceInUse
from pydra.kubelet import pb
from pydra.kubelet.message_conversion import MAX_CLAIMS
from tests.integration.kubelet.fakes import (
    V1,
    V1BETA1,
    Failed,
    claim,
    grpcio_kubelet,
    prepare,
    prepare_v1beta1,
    serve,
    unprepare,
    wait_until,
)


async def test_both_versions_prepare_and_unprepare(root: Path) -> None:
    async with serve(root) as running, grpcio_kubelet(running.paths.service) as kubelet:
        running.claims.answer = lambda ref: (
            ContainerDevice(requests=("gpu",), pool="p", device="d", cdi_ids=(f"v/c={ref.uid}",), share_id="s"),
        )
        v1 = await prepare(kubelet, "uid-1", "uid-2")
        v1beta1 = await prepare_v1beta1(kubelet, "uid-1")
        undone = await unprepare(kubelet, "uid-1", "uid-2")
        undone_v1beta1 = await kubelet.unary(
            f"{V1BETA1}/NodeUnprepareResources",
            pb.NodeUnprepareResourcesRequest(claims=[claim("uid-1")]),
            pb.NodeUnprepareResourcesResponse,
        )
    assert {uid: [one.cdi_device_ids for one in answer.devices] for uid, answer in v1.claims.items()} == {
        "uid-1": [["v/c=uid-1"]],
        "uid-2": [["v/c=uid-2"]],
    }
    assert v1.claims["uid-1"].devices[0].share_id == "s"
    assert v1beta1.claims["uid-1"].devices[0].cdi_device_ids == ["v/c=uid-1"]
    assert v1beta1.claims["uid-1"].devices[0].share_id is None
    assert {uid: answer.error for uid, answer in undone.claims.items()} == {"uid-1": "", "uid-2": ""}
    assert undone_v1beta1.claims["uid-1"].error == ""


@pytest.mark.parametrize(
    "authority", ["localhost", "%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fgpu.example.com-reg.sock"]
)
async def test_any_authority_is_served(root: Path, authority: str) -> None:
    async with serve(root) as running, grpcio_kubelet(running.paths.service, authority) as kubelet:
        assert list((await prepare(kubelet, "uid-1")).claims) == ["uid-1"]


async def test_one_claims_error_is_that_claims_alone(root: Path) -> None:
    def answer(ref: ClaimRef) -> PrepareOutcome:
        return DeviceInUse("gpu-0", "team/other") if ref.uid == "uid-2" else ()

    async with serve(root) as running, grpcio_kubelet(running.paths.service) as kubelet:
        running.claims.answer = answer
        response = await prepare(kubelet, "uid-1", "uid-2")
    assert response.claims["uid-1"].error == ""
    assert response.claims["uid-2"].error.startswith("device gpu-0 is still prepared for claim team/other")


async def test_a_hostile_claim_never_reaches_the_driver_and_spoils_no_other(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(root) as running, grpcio_kubelet(running.paths.service) as kubelet:
        response = await prepare(kubelet, "../../etc/cron.d/x", "uid-1", "", "ünicode")
        assert running.claims.asked == ["uid-1"]
    errors = {uid: answer.error for uid, answer in response.claims.items()}
    assert errors.pop("uid-1") == ""
    assert sorted(errors) == ["", "../../etc/cron.d/x", "ünicode"]
    assert all("the kubelet sent a claim" in error for error in errors.values())
    assert [line for line in caplog.messages if "; and 2 more" in line and "etc/cron.d" in line], (
        "the admin reads it too"
    )


async def test_a_call_without_claims_is_answered(root: Path) -> None:
    async with serve(root) as running, grpcio_kubelet(running.paths.service) as kubelet:
        assert (await prepare(kubelet)).claims == {}
        assert running.claims.asked == []


@pytest.mark.parametrize(
    "path",
    [
        "/v1alpha1.Nothing/NodeWatchResources",
        f"{V1}/NodeListResources",
        "/v1alpha3.Node/NodePrepareResources",
        "/x",
    ],
)
async def test_the_unknown_is_unimplemented(root: Path, path: str) -> None:
    async with serve(root) as running:
        for socket in (running.paths.service, running.paths.registration):
            async with grpcio_kubelet(socket) as kubelet:
                with pytest.raises(Failed, match=r"^UNIMPLEMENTED: unknown method"):
                    await kubelet.unary(path, pb.NodePrepareResourcesRequest(), pb.NodePrepareResourcesResponse)


async def test_a_call_that_the_kubelet_gives_up_on_is_finished(root: Path) -> None:
    async with serve(root) as running, grpcio_kubelet(running.paths.service) as kubelet:
        running.claims.gate = anyio.Event()
        with pytest.raises(Failed, match="DEADLINE_EXCEEDED"):
            await prepare(kubelet, "uid-1", timeout=0.1)
        assert running.claims.asked == ["uid-1"]
        assert running.claims.done == []
        running.claims.gate.set()
        await wait_until(lambda: running.claims.done == ["uid-1"])
        assert (await prepare(kubelet, "uid-1")).claims["uid-1"].error == ""


async def test_a_call_that_the_kubelet_cancels_is_finished(root: Path) -> None:
    async with serve(root) as running, grpcio_kubelet(running.paths.service) as kubelet:
        running.claims.gate = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(prepare, kubelet, "uid-1")
            await wait_until(lambda: running.claims.asked)
            group.cancel_scope.cancel()
        running.claims.gate.set()
        await wait_until(lambda: running.claims.done == ["uid-1"])
        assert (await prepare(kubelet, "uid-2")).claims["uid-2"].error == ""


async def test_a_kubelet_that_vanishes_leaves_its_call_to_be_finished(root: Path) -> None:
    async with serve(root) as running:
        running.claims.gate = anyio.Event()
        async with anyio.create_task_group() as group:

            async def call_and_vanish() -> None:
                async with grpcio_kubelet(running.paths.service) as kubelet:
                    await prepare(kubelet, "uid-1")

            group.start_soon(call_and_vanish)
            await wait_until(lambda: running.claims.asked)
            group.cancel_scope.cancel()
        running.claims.gate.set()
        await wait_until(lambda: running.claims.done == ["uid-1"])


async def test_as_many_calls_run_side_by_side_as_a_node_has_pods(root: Path) -> None:
    uids = [f"uid-{number}" for number in range(300)]
    async with serve(root) as running, grpcio_kubelet(running.paths.service) as kubelet:
        running.claims.gate = anyio.Event()
        answers: list[Any] = []

        async def call(uid: str) -> None:
            answers.append(await prepare(kubelet, uid, timeout=60))

        async with anyio.create_task_group() as group:
            for uid in uids:
                group.start_soon(call, uid)
            await wait_until(lambda: len(running.claims.asked) == len(uids))
            running.claims.gate.set()
        assert sorted(uid for answer in answers for uid in answer.claims) == sorted(uids)


async def test_four_mebibytes_of_claims_are_refused_in_words(root: Path) -> None:
    async with serve(root) as running, grpcio_kubelet(running.paths.service) as kubelet:
        with pytest.raises(Failed, match=f"RESOURCE_EXHAUSTED: {MAX_CLAIMS + 1} claims in one call"):
            await prepare(kubelet, *(f"{number}" for number in range(MAX_CLAIMS + 1)))
        with pytest.raises(Failed, match=r"RESOURCE_EXHAUSTED: the request has \d+ bytes; at most 4194304"):
            await prepare(kubelet, "u" * (4 << 20))
        assert running.claims.asked == []
        assert (await prepare(kubelet, "uid-1")).claims["uid-1"].error == ""


async def test_an_answer_that_the_kubelet_would_not_take_is_an_error_in_words(root: Path) -> None:
    async with serve(root) as running, grpcio_kubelet(running.paths.service) as kubelet:
        running.claims.answer = lambda _: (
            ContainerDevice(requests=(), pool="p", device="d", cdi_ids=tuple("x" * 1024 for _ in range(4096))),
        )
        with pytest.raises(Failed, match=r"RESOURCE_EXHAUSTED: the answer has \d+ bytes; the kubelet accepts"):
            await prepare(kubelet, "uid-1")


async def test_the_errors_of_many_claims_fit_into_one_answer(root: Path) -> None:
    uids = [f"uid-{number}" for number in range(1100)]
    async with serve(root) as running, grpcio_kubelet(running.paths.service) as kubelet:
        error = ClaimError("x" * 10_000)
        running.claims.answer = lambda _: error
        response = await prepare(kubelet, *uids)
    assert response.claims.keys() == set(uids)
    assert all(answer.error.endswith("...") for answer in response.claims.values())
