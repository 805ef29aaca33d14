"""What the pod of `helm test` talks to: an API server over TLS with fixed answers, and the page of an agent."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import parse_qs

from tests.integration.kube.authority import Authority

TOKEN = "the-pod's-own"
DRA = "/apis/resource.k8s.io/v1"
AGENTS = "/apis/apps/v1/namespaces/pydra-system/daemonsets/pydra-sim"
PODS = "/api/v1/namespaces/pydra-system/pods"
EVENTS = "/api/v1/namespaces/pydra-system/events"
SLICES = f"{DRA}/resourceslices"
CLASSES = f"{DRA}/deviceclasses"
CLAIMS = f"{DRA}/namespaces/pydra-system/resourceclaims"

Queries: TypeAlias = Mapping[str, Mapping[str, list[str]]]

QUERIES: Queries = {
    SLICES: {"limit": ["50"], "fieldSelector": ["spec.driver=sim.pydra.dev"]},
    CLAIMS: {"dryRun": ["All"]},
    PODS: {"limit": ["50"], "labelSelector": ["pydra.dev/agent=pydra-sim"]},
    EVENTS: {"fieldSelector": ["involvedObject.name=pydra-sim,reason=FailedCreate"]},
}
"""What must be asked for at a path; another query is refused."""

Answer: TypeAlias = tuple[int, Mapping[str, Any]]
Answers: TypeAlias = Mapping[str, Answer]


def refused(message: str, code: int = 403) -> Answer:
    """As the API server says no."""
    return code, {"kind": "Status", "status": "Failure", "message": message, "code": code}


@contextmanager
def serve_api(answers: Answers, scratch: Path, queries: Queries = QUERIES) -> Iterator[dict[str, str]]:
    """The variables with which a pod would find this API server; `continue` is added to a path."""

    class Handler(_Quiet):
        def do_GET(self) -> None:
            path, _, text = self.path.partition("?")
            query = parse_qs(text)
            code, body = answers.get(path + "".join(query.pop("continue", [])), refused("not found", 404))
            if self.headers["Authorization"] != f"Bearer {TOKEN}" or query != queries.get(path, {}):
                code, body = refused(f"asked {self.path} with {self.headers['Authorization']}", 401)
            self.answer(code, json.dumps(body).encode())

        def do_POST(self) -> None:
            claim = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert claim["spec"]["devices"]["config"][0]["opaque"]["driver"] == "sim.pydra.dev"
            self.do_GET()

    authority = Authority(scratch)
    (scratch / "token").write_text(TOKEN)
    with _serve(Handler, authority.context) as port:
        yield {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(port),
            "PYDRA_TEST_ACCOUNT": str(scratch),
            "PYDRA_TEST_PATIENCE": "0",
        }


@contextmanager
def serve_agent(**pages: str) -> Iterator[int]:
    """The port at which an agent's pages are served; one that is not named is answered with 503 and nothing."""

    class Handler(_Quiet):
        def do_GET(self) -> None:
            page = self.path.strip("/")
            self.answer(200 if page == "metrics" else 503, pages.get(page, "").encode())

    with _serve(Handler, None) as port:
        yield port


class _Quiet(BaseHTTPRequestHandler):
    def answer(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


@contextmanager
def _serve(handler: type[_Quiet], context: ssl.SSLContext | None) -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()
