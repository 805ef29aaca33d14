"""Reviews over HTTP: answered, counted, or refused as no reviews in words."""

from __future__ import annotations

import asyncio
import io
import socket
from contextlib import suppress
from typing import Any

import anyio
import pytest

from pydra.admission.webhook import MAX_BODY, MOST_LARGE, PATH, SMALL_BODY
from pydra.errors import SettingsError
from tests.integration.admission.serving import JSON, Webhook, connect, review, serve_webhook
from tests.unit.admission.configs import sim
from tests.unit.admission.questions import build_body, encode, entry

RIGHT, WRONG = entry("sim.pydra.dev", sim()), entry("sim.pydra.dev", sim(clockMHz=1))


async def test_reviews_of_any_depth_are_answered() -> None:
    config = b'{"opaque":{"driver":"sim.pydra.dev","parameters":{"env":%s}}}'
    async with serve_webhook() as webhook, connect() as session:
        answers = set()
        for depth in (*range(850, 1000), 100_000):  # Python 3.12 and later allow more than 1000
            body = encode(build_body("deviceclasses", ["@"], old=["@"], operation="UPDATE"))
            nested = body.replace(b'"@"', config % (b"[" * depth + b"]" * depth))
            async with session.post(webhook.url + PATH, data=nested, headers=JSON) as response:
                answers.add(response.status)
    assert answers == {200, 400}


async def test_reviews_are_answered_and_counted() -> None:
    async with serve_webhook() as webhook, connect() as session:
        assert (await review(session, webhook.url, configs=[RIGHT]))["allowed"] is True
        refused = await review(session, webhook.url, "deviceclasses", [RIGHT, WRONG])
        assert refused["allowed"] is False
        assert refused["status"]["message"] == (
            "spec.config[1].opaque.parameters.clockMHz: found 1, allowed: an integer >= 200 and <= 2000"
        )
        assert (await review(session, webhook.url, configs=[WRONG], operation="DELETE"))["allowed"] is True
        assert (await review(session, webhook.url, "pods"))["allowed"] is True
        for resource, result in (
            ("resourceclaims", "allowed"),
            ("deviceclasses", "denied"),
            ("resourceclaims", "not_ours"),
            ("other", "not_ours"),
        ):
            assert webhook.count(resource, result) == 1, (resource, result)
        async with session.get(f"{webhook.url}/metrics") as response:
            text = await response.text()
        assert "pydra_admission_review_duration_seconds_count 4.0" in text


@pytest.mark.parametrize(
    ("body", "headers", "status", "words"),
    [
        pytest.param(b"{}", JSON, 400, "the body is not an AdmissionReview: Object missing required field", id="empty"),
        pytest.param(b"{", JSON, 400, "the body is not an AdmissionReview: Input data was truncated", id="torn"),
        pytest.param(
            encode({**build_body(), "kind": "Pod"}),
            {"Content-Type": "application/json; charset=utf-8"},
            400,
            'the body is of apiVersion "admission.k8s.io/v1", kind "Pod", expected admission.k8s.io/v1 AdmissionReview',
            id="another kind",
        ),
        pytest.param(
            encode(build_body()),
            {"Content-Type": "application/yaml"},
            415,
            "expected Content-Type application/json, found application/yaml",
            id="another content type",
        ),
        pytest.param(
            b"{}",
            {**JSON, "Content-Encoding": "gzip"},
            415,
            "expected a body without Content-Encoding, found gzip",
            id="said to be compressed",
        ),
        pytest.param(b"x" * (MAX_BODY + 1), JSON, 413, f"a review has at most {MAX_BODY} bytes", id="too large"),
    ],
)
async def test_what_is_no_review_is_answered_in_words(
    body: bytes, headers: dict[str, str], status: int, words: str
) -> None:
    async with serve_webhook() as webhook, connect() as session:
        async with session.post(f"{webhook.url}{PATH}", data=io.BytesIO(body), headers=headers) as response:
            assert response.status == status
            assert (await response.text()).startswith(words)
        assert webhook.count("other", "malformed") == 1
        assert (await review(session, webhook.url, configs=[RIGHT]))["allowed"] is True


async def test_the_largest_review_of_an_api_server_is_taken() -> None:
    padding = {"metadata": {"annotations": {"a": "x" * (3 << 19)}}}
    async with serve_webhook() as webhook, connect() as session:
        answer = await review(session, webhook.url, configs=[WRONG], oldObject=padding, options=padding)
    assert answer["allowed"] is False


async def test_a_review_that_does_not_arrive_costs_its_sender_alone() -> None:
    async def drip() -> Any:
        yield b"{"
        await anyio.sleep_forever()

    before = asyncio.all_tasks()
    async with serve_webhook(read_deadline=0.2) as webhook, connect() as session:
        with anyio.fail_after(30):
            async with session.post(f"{webhook.url}{PATH}", data=drip(), headers=JSON) as response:
                assert response.status == 408
                assert await response.text() == "the review did not arrive within 0.2 s\n"
        assert (await review(session, webhook.url, configs=[RIGHT]))["allowed"] is True
    with anyio.fail_after(30):  # aiohttp waits for the rest of the body as long again, although the client is gone
        while asyncio.all_tasks() - before:
            await anyio.sleep(0.01)


async def test_reviews_that_arrive_slowly_do_not_keep_large_ones_waiting() -> None:
    async def drip() -> Any:
        yield b"{"
        await anyio.sleep_forever()

    async with serve_webhook(read_deadline=20.0) as webhook, connect() as session, connect() as other:

        async def send_slowly() -> None:
            async with session.post(f"{webhook.url}{PATH}", data=drip(), headers=JSON):
                pass

        async with anyio.create_task_group() as slow:
            for _ in range(2 * MOST_LARGE):
                slow.start_soon(send_slowly)
            with anyio.fail_after(10):
                answer = await review(other, webhook.url, configs=[RIGHT], padding="x" * 2 * SMALL_BODY)
            slow.cancel_scope.cancel()
        assert answer["allowed"] is True


async def test_other_paths_and_methods_are_not_answered_as_reviews() -> None:
    async with serve_webhook() as webhook, connect() as session:
        for method, path, status in (("GET", PATH, 405), ("POST", "/", 404), ("GET", "/healthz", 200)):
            async with session.request(method, f"{webhook.url}{path}") as response:
                assert response.status == status, (method, path)


async def test_many_reviews_at_once_are_each_answered_for_themselves() -> None:
    async with serve_webhook() as webhook, connect(limit=50) as session:

        async def one(index: int) -> None:
            answer = await review(session, webhook.url, configs=[WRONG if index % 2 else RIGHT], uid=f"review-{index}")
            assert (answer["uid"], answer["allowed"]) == (f"review-{index}", index % 2 == 0)

        await asyncio.gather(*(one(index) for index in range(200)))
        assert webhook.count("resourceclaims", "denied") == 100


async def test_a_client_with_many_reviews_waits_itself_and_not_the_others() -> None:
    """Anybody in the cluster may send some, over connections that stay open."""

    async def receive(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        head = await connection[0].readuntil(b"\r\n\r\n")
        await connection[0].readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))

    def send(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], resource: str, padding: str) -> None:
        body = encode(build_body(resource, [RIGHT], padding=padding))
        head = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        connection[1].write(f"{head}\r\n\r\n".encode() + body)

    async with serve_webhook() as webhook:
        port = int(webhook.url.rpartition(":")[2])
        clients = [*["127.0.0.2"] * 40, "127.0.0.3"]
        connections = [await asyncio.open_connection("127.0.0.1", port, local_addr=(one, 0)) for one in clients]
        for connection in connections:
            send(connection, "pods", "")
            await receive(connection)
        *many, other = connections
        for connection in many:
            send(connection, "resourceclaims", "x" * (32 << 10))
        send(other, "deviceclasses", "")
        await receive(other)
        assert webhook.count("resourceclaims", "allowed") < 20
        for connection in many:
            await receive(connection)
        for _, writer in connections:
            writer.close()


async def test_one_that_leaves_is_not_ready_and_closes_its_connections_with_their_next_answer() -> None:
    async with serve_webhook() as webhook, connect() as session:
        async with session.get(f"{webhook.url}/readyz") as response:
            assert (response.status, await response.text()) == (200, "ok\n")
        webhook.service.draining = True
        async with session.post(f"{webhook.url}{PATH}", data=encode(build_body()), headers=JSON) as response:
            assert response.status == 200
            assert response.headers["Connection"] == "close"
        async with session.get(f"{webhook.url}/readyz") as response:
            assert (response.status, await response.text()) == (503, "shutting down\n")


async def test_an_address_in_use_is_a_settings_error_that_names_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"address: cannot listen on 127.0.0.1:{port}"):
            async with serve_webhook(port=port):
                pass


async def test_a_body_in_broken_pieces_is_answered_in_words() -> None:
    async with serve_webhook() as webhook:
        reader, writer = await open_plain(webhook)
        writer.write(f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n".encode())
        writer.write(b"Transfer-Encoding: chunked\r\n\r\n5\r\n{}\r\nnonsense\r\n")
        with anyio.fail_after(30):
            assert (await reader.readline()).split()[1] == b"400"
        writer.close()
        await writer.wait_closed()


async def test_a_connection_that_never_asks_is_closed_and_one_that_asked_is_kept() -> None:
    async with serve_webhook(read_deadline=0.3) as webhook, connect(limit=1) as session:
        assert (await review(session, webhook.url, configs=[RIGHT]))["allowed"] is True
        connections = [await open_plain(webhook) for _ in range(3)]
        for _, writer in connections:
            writer.write(f"POST {PATH} HTTP/1.1\r\nHost: ".encode())
        with anyio.fail_after(30):
            for reader, writer in connections:
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
                writer.close()
                with suppress(ConnectionResetError):
                    await writer.wait_closed()
        assert (await review(session, webhook.url, configs=[RIGHT]))["allowed"] is True


async def open_plain(webhook: Webhook) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(webhook.url.rpartition(":")[2]))
