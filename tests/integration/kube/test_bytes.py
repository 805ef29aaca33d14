"""Bytes that other drivers, tenants and gateways write cost one object, never the agent."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import anyio
import pytest

from pydra.errors import KubeError, Unavailable, Unreadable
from pydra.kube.api_resources import RESOURCE_CLAIMS, RESOURCE_SLICES, WatchEventType
from pydra.kube.informer import Informer
from tests.integration.kube.raw_server import open_raw_client, reply, serve_raw

DEEP = b"[" * 200_000 + b"]" * 200_000


def make_object(name: str, config: bytes = b"{}", version: int = 5) -> bytes:
    metadata = b'{"namespace":"ns","name":"%s","uid":"u-%s","resourceVersion":"%d"}' % (
        name.encode(),
        name.encode(),
        version,
    )
    return b'{"metadata":%s,"spec":{"config":%s}}' % (metadata, config)


def make_list(*items: bytes) -> bytes:
    return b'{"kind":"List","items":[%s],"metadata":{"resourceVersion":"7"}}' % b",".join(items)


REPAIRED = {
    "a byte that is not UTF-8": b'{"a":"caf\xe9"}',
    "unpaired surrogate": rb'{"a":"\ud800","b":"\\ud800","c":"\ud83d\ude00"}',
    "a key that is not UTF-8": b'{"\xe9":1}',
}
UNREADABLE = {
    "nested too deep": make_object("bad", DEEP),
    "metadata null": b'{"metadata":null,"spec":{}}',
    "no metadata": b'{"spec":{}}',
}


@pytest.mark.parametrize("config", REPAIRED.values(), ids=REPAIRED)
async def test_text_that_is_not_unicode_is_read_with_a_replacement(config: bytes) -> None:
    item = make_object("a", config)

    async def answer(target: str, writer: asyncio.StreamWriter) -> None:
        if "watch=1" in target:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b'{"type":"ADDED","object":%s}\n' % item)
            writer.close()
        else:
            writer.write(reply(item if target.endswith("/a") else make_list(item)))

    async with serve_raw(answer) as url, open_raw_client(url) as client:
        found = await client.get(RESOURCE_CLAIMS, "a", namespace="ns")
        text = str(found["spec"]["config"])
        assert "\ufffd" in text
        text.encode()
        [listed] = (await client.list(RESOURCE_CLAIMS)).items
        assert listed["spec"] == found["spec"]
        async with aclosing(client.watch(RESOURCE_CLAIMS, resource_version="1")) as events:
            assert (await anext(events)).object == found


@pytest.mark.parametrize("item", [*UNREADABLE.values(), b"[]", b"5"], ids=[*UNREADABLE, "a list", "a number"])
async def test_a_list_leaves_out_and_names_what_cannot_be_read(item: bytes, caplog: pytest.LogCaptureFixture) -> None:
    body = make_list(make_object("first"), item, make_object("last"))
    async with serve_raw(reply(body)) as url, open_raw_client(url) as client:
        listed = await client.list(RESOURCE_CLAIMS)
    assert [one["metadata"]["name"] for one in listed.items] == ["first", "last"]
    assert listed.resource_version == "7"
    assert f"left out {'ns/bad' if item == UNREADABLE['nested too deep'] else 'item 1'} (" in caplog.text


@pytest.mark.parametrize("item", UNREADABLE.values(), ids=UNREADABLE)
async def test_an_object_that_cannot_be_read_is_an_error_of_that_object(item: bytes) -> None:
    async with serve_raw(reply(item)) as url, open_raw_client(url) as client:
        with pytest.raises(Unreadable, match="cannot read ResourceClaim ns/bad: it is"):
            await client.get(RESOURCE_CLAIMS, "bad", namespace="ns")


EVENTS = {
    **{name: b'{"type":"MODIFIED","object":%s}' % item for name, item in UNREADABLE.items()},
    "object null": b'{"type":"MODIFIED","object":null}',
    "no object": b'{"type":"ADDED"}',
    "an unknown type": b'{"type":"RENAMED","object":%s}' % make_object("a"),
    "a type that is not text": b'{"type":["ADDED"],"object":%s}' % make_object("a"),
    "cut off": b'{"type":"ADDED","object":{"meta',
}


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
async def test_a_watch_goes_on_past_an_event_that_cannot_be_read(
    event: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    good = b'{"type":"ADDED","object":%s}' % make_object("good")
    stream = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + event + b"\n" + good + b"\n"
    async with serve_raw(stream) as url, open_raw_client(url) as client:
        watch = client.watch(RESOURCE_CLAIMS, resource_version="1")
        found = await anext(watch)
        await watch.aclose()
    assert (found.type, found.object["metadata"]["name"]) == (WatchEventType.ADDED, "good")
    name = "ns/bad" if event == EVENTS["nested too deep"] else "ns/a" if b'"a"' in event else "an event"
    assert f"left out {name} (" in caplog.text


FOREIGN = {
    "a page": reply(b"<html>\n<h1>caf\xe9</h1>"),
    "a gateway's 502": reply(b"<h1>Bad \xe9 Gateway</h1>", status="502 Bad Gateway"),
    "a 502 with an unpaired surrogate": reply(rb'{"message":"\ud800"}', status="502 Bad Gateway"),
    "a 502 nested too deep": reply(b'{"message":%s}' % DEEP, status="502 Bad Gateway"),
    "a 403 of wrong types": reply(b'{"message":5,"reason":[],"code":"x"}', status="403 Forbidden"),
    "an error event of wrong types": reply(b'{"type":"ERROR","object":{"code":"x","message":null}}\n'),
    "items of another type": reply(b'{"items":{"a":1},"metadata":{}}'),
    "a list nested too deep": reply(b'{"metadata":{"continue":%s}}' % DEEP),
    "metadata of another type": reply(b'{"items":[],"metadata":null}'),
    "nothing": reply(b""),
    "a number": reply(b"5\n"),
    "a body cut short": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
    "no HTTP": b"\xff\xfe\r\n\r\n",
    "a head with such bytes": b"HTTP/1.1 502 Bad \xe9\r\nRetry-After: \xe9\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("answer", FOREIGN.values(), ids=FOREIGN)
async def test_whatever_answers_in_place_of_the_api_is_an_error_of_the_request(answer: bytes) -> None:
    async with serve_raw(answer) as url, open_raw_client(url, deadline=1.0, retry_for=0.0) as client:
        for request in (
            client.get(RESOURCE_CLAIMS, "a", namespace="ns"),
            client.list(RESOURCE_CLAIMS),
            client.fetch("/version"),
            client.create(RESOURCE_CLAIMS, {}, namespace="ns"),
        ):
            try:
                await request
            except KubeError as error:
                str(error).encode()
        try:
            async with aclosing(client.watch(RESOURCE_CLAIMS, resource_version="1")) as events:
                async for _ in events:
                    pass
        except KubeError as error:
            str(error).encode()


async def test_a_page_in_place_of_a_watch_ends_it() -> None:
    async with serve_raw(reply(b"<p>\n" * 9)) as url, open_raw_client(url) as client:
        with pytest.raises(Unavailable, match="is there a proxy"):
            await anext(client.watch(RESOURCE_CLAIMS, resource_version="1"))


async def test_an_informer_outlives_a_gateway_and_an_unreadable_slice() -> None:
    served = list(FOREIGN.values())

    async def answer(target: str, writer: asyncio.StreamWriter) -> None:
        if served:
            writer.write(served.pop())
            writer.close()
        elif "watch=1" in target:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b'{"type":"ADDED","object":%s}\n' % make_object("second"))
            writer.close()
        else:
            writer.write(reply(make_list(make_object("bad", DEEP), make_object("first"))))

    async with serve_raw(answer) as url, open_raw_client(url, retry_for=0.0) as client:
        informer = Informer(client, RESOURCE_SLICES, uniform=lambda low, _: min(low, 0.001))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(informer.run)
            with anyio.fail_after(30):
                while {name for _, name in informer.objects} != {"first", "second"}:
                    await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()


async def test_an_answer_without_end_is_refused_at_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(target: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 %s\r\n\r\n" % (b"500 Internal Server Error" if "refused" in target else b"200 OK"))
        while True:
            writer.write(b"x" * 1024 * 1024)
            await writer.drain()

    async with serve_raw(answer) as url, open_raw_client(url, retry_for=0.0) as client:
        with pytest.raises(Unavailable, match=r"the answer of http://.* is too large: more than 64 MiB"):
            await client.get(RESOURCE_CLAIMS, "a", namespace="ns")
        with pytest.raises(Unavailable, match=r"500 Internal Server Error.*not from the Kubernetes API.*: x+$"):
            await client.get(RESOURCE_CLAIMS, "refused", namespace="ns")


async def test_a_wait_that_a_gateway_asks_for_is_cut_short() -> None:
    answer = reply(b"", status="503 Service Unavailable", headers=f"Retry-After: {'9' * 400}\r\n")
    async with serve_raw(answer) as url, open_raw_client(url, retry_for=0.0) as client:
        with pytest.raises(Unavailable) as refusal:
            await client.get(RESOURCE_CLAIMS, "a", namespace="ns")
    assert refusal.value.retry_after == 30


async def test_waiting_for_a_turn_is_not_waiting_for_the_api_server() -> None:
    held, release = asyncio.Event(), asyncio.Event()

    async def answer(target: str, writer: asyncio.StreamWriter) -> None:
        if target.endswith("/first"):
            held.set()
            await release.wait()
        writer.write(reply(make_object("a")))

    async with (
        serve_raw(answer) as url,
        open_raw_client(url, deadline=30.0, retry_for=0.0, requests=1) as client,
        asyncio.TaskGroup() as tasks,
    ):
        first = tasks.create_task(client.get(RESOURCE_CLAIMS, "first", namespace="ns"))
        await held.wait()
        second = tasks.create_task(client.get(RESOURCE_CLAIMS, "second", namespace="ns", deadline=1.0))
        await asyncio.wait([second], timeout=1.5)
        release.set()
        await asyncio.gather(first, second)


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (
            reply(b'{"message":"slow down"}', status="429 Too Many Requests"),
            "answered 429 Too Many Requests: slow down",
        ),
        (
            reply(b"<h1>Bad</h1>", status="502 Bad Gateway"),
            r"answered 502 Bad Gateway.*\(is there a proxy\?\): <h1>Bad",
        ),
        (reply(b"<html>login</html>"), r"not from the Kubernetes API \(is there a proxy\?\): .*"),
    ],
    ids=["429", "502", "a login page"],
)
async def test_a_deadline_that_passes_in_retries_tells_the_last_cause(answer: bytes, cause: str) -> None:
    async with serve_raw(answer) as url, open_raw_client(url) as client:
        with pytest.raises(Unavailable, match=rf"^cannot read ResourceClaim ns/a: .*{cause}.*; gave up after 0\.5 s$"):
            await client.get(RESOURCE_CLAIMS, "a", namespace="ns", deadline=0.5)
