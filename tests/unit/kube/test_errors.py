"""Every failure of a request becomes one error of pydra's tree, with words that help."""

from __future__ import annotations

import inspect

import aiohttp
import pytest

from pydra.errors import Conflict, Gone, Invalid, KubeError, NotFound, Unavailable
from pydra.kube.api_resources import EVENTS, NODES, PODS, RESOURCE_CLAIMS, Resource, build_path
from pydra.kube.client import LOWER_ERRORS
from pydra.kube.errors import Status, build_error, build_unanswered, describe, error_class, parse_status

CLASSES = {
    0: Unavailable,
    400: KubeError,
    401: KubeError,
    403: KubeError,
    404: NotFound,
    405: KubeError,
    408: Unavailable,
    409: Conflict,
    410: Gone,
    413: KubeError,
    415: KubeError,
    422: Invalid,
    429: Unavailable,
    500: Unavailable,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
    599: Unavailable,
}


@pytest.mark.parametrize(("status", "kind"), CLASSES.items())
def test_each_status_has_its_class(status: int, kind: type[KubeError]) -> None:
    error = build_error("get x", status, Status())
    assert (error_class(status), type(error), error.status) == (kind, kind, status)


@pytest.mark.parametrize(
    ("body", "is_of_object"),
    [
        pytest.param(
            b'{"kind": "Status", "reason": "NotFound", "message": "resourceclaims.resource.k8s.io \\"c\\" not found",'
            b' "details": {"name": "c", "group": "resource.k8s.io", "kind": "resourceclaims"}}',
            True,
            id="no such object",
        ),
        pytest.param(b"404 page not found", False, id="no such API, up to 1.37"),
        pytest.param(
            b'{"kind": "Status", "reason": "NotFound", "message": "the server could not find the requested resource",'
            b' "details": {}}',
            False,
            id="no such API, from 1.38",
        ),
        pytest.param(b'{"kind": "Status", "reason": "NotFound", "details": null}', False, id="no details"),
        pytest.param(b'{"reason": "NotFound", "details": {"name": ["c"]}}', False, id="another shape"),
        pytest.param(b'{"details": {"name": "c"}}', False, id="no reason"),
        pytest.param(b"<html>not here</html>", False, id="a proxy"),
    ],
)
def test_only_an_answer_about_the_object_says_that_it_does_not_exist(body: bytes, is_of_object: bool) -> None:
    error = build_error("read ResourceClaim ns/c", 404, parse_status(body))
    assert isinstance(error, NotFound)
    assert error.is_of_object is is_of_object


def test_an_api_that_is_not_served_is_called_that_and_not_a_proxys_page() -> None:
    error = build_error("list cliques.example.com", 404, parse_status(b"404 page not found\n"))
    assert "serves no such API" in str(error)
    assert "is not from the Kubernetes API" not in str(error)


def test_whatever_aiohttp_raises_is_caught_by_the_client() -> None:
    lower = [
        kind
        for _, kind in inspect.getmembers(aiohttp, inspect.isclass)
        if issubclass(kind, Exception) and "WS" not in kind.__name__ and "WebSocket" not in kind.__name__
    ]
    assert len(lower) > 15
    # Reading a stream's lines and decoding a content type are not done; a bad cookie is not kept.
    not_raised = {aiohttp.EofStream, aiohttp.BadContentDispositionHeader, aiohttp.BadContentDispositionParam}
    unmapped = {kind for kind in lower if not issubclass(kind, (*LOWER_ERRORS, Warning))}
    assert unmapped <= not_raised


def test_the_message_says_what_was_done_what_came_and_what_to_do() -> None:
    answer = parse_status(b'{"message": "nodes is forbidden", "reason": "Forbidden", "code": 403, "details": {}}')
    error = build_error(describe("list", NODES, "/api/v1/nodes?limit=500"), 403, answer)
    assert str(error) == (
        "cannot list nodes: the API server answered 403 Forbidden: nodes is forbidden "
        "(check the RBAC rules of this ServiceAccount)"
    )
    assert error.cause == "Forbidden"


def test_a_refusal_by_a_webhook_of_somebody_else_is_not_blamed_on_rbac() -> None:
    said = 'admission webhook "nodes.example.com" denied the request: no team label'
    assert str(build_error("create x", 403, Status(message=said, reason="Forbidden"))).endswith(said)


@pytest.mark.parametrize(
    ("verb", "resource", "path", "words"),
    [
        ("get", None, "/version", "read /version"),
        ("get", NODES, build_path(NODES, name="n"), "read Node n"),
        (
            "update",
            RESOURCE_CLAIMS,
            build_path(RESOURCE_CLAIMS, namespace="a b", name="c"),
            "replace ResourceClaim a b/c",
        ),
        ("list", RESOURCE_CLAIMS, build_path(RESOURCE_CLAIMS), "list resourceclaims.resource.k8s.io"),
        ("create", EVENTS, build_path(EVENTS, namespace="ns"), "create events.events.k8s.io in namespace ns"),
        ("create", PODS, build_path(PODS, namespace="ns") + "?dryRun=All", "create pods in namespace ns"),
    ],
)
def test_a_request_is_described_by_what_it_is_about(
    verb: str, resource: Resource | None, path: str, words: str
) -> None:
    assert describe(verb, resource, path) == words


BODIES = {
    "a page": (b"<html>\nBad Gateway\n</html>", Status(non_kubernetes_body="<html>")),
    "a text": (b"  upstream connect error\n", Status(non_kubernetes_body="upstream connect error")),
    "nothing": (b"", Status()),
    "garbage": (b"\xff\xfe", Status(non_kubernetes_body="\ufffd\ufffd")),
    "a list": (b"[]", Status(non_kubernetes_body="[]")),
    "a status of wrong types": (b'{"message": 5, "reason": "x"}', Status(reason="x")),
}


@pytest.mark.parametrize(("body", "status"), BODIES.values(), ids=BODIES)
def test_a_body_that_is_not_a_status_gives_its_first_line(body: bytes, status: Status) -> None:
    assert parse_status(body) == status


def test_a_message_without_end_is_cut() -> None:
    assert len(str(build_error("get x", 500, parse_status(b"x" * 10**6)))) < 2100


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("", 0.0), ("soon", 0.0), ("-1", 0.0), ("9" * 400, 30.0), ("Wed, 21 Oct 2026 07:28:00 GMT", 0.0)],
)
def test_the_time_that_a_server_asks_for_is_kept(header: str, seconds: float) -> None:
    error = build_error("get x", 429, Status(), retry_after=header)
    assert isinstance(error, Unavailable)
    assert error.retry_after == seconds


UNANSWERED = {
    "a deadline": (TimeoutError(), "timed out after 10 s waiting for https://api"),
    "a reset": (
        ConnectionResetError(104, "Connection reset by peer"),
        "no answer from https://api: Connection reset by peer",
    ),
    "a reset without words": (ConnectionResetError(), "no answer from https://api: ConnectionResetError"),
    "silence": (TimeoutError(110, "Connection timed out"), "no answer from https://api: Connection timed out"),
    "a name that nobody knows": (OSError(-2, "Name not known"), "no answer from https://api: Name not known"),
    "a server that hangs up": (aiohttp.ServerDisconnectedError(), "no answer from https://api: Server disconnected"),
    "an alert": (
        aiohttp.ClientOSError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert (_ssl.c:2580)"),
        "TLS with https://api failed: tlsv13 alert certificate required (CA file ca.crt)",
    ),
}


@pytest.mark.parametrize(("error", "words"), UNANSWERED.values(), ids=UNANSWERED)
def test_no_answer_says_so(error: BaseException, words: str) -> None:
    found = build_unanswered("read x", "https://api", error, seconds=10, trust="CA file ca.crt")
    assert (str(found), found.status) == (f"cannot read x: {words}", 0)
