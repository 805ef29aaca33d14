"""How the API server's tests connect, and how they read a refusal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.integration.api_handle import Answer, ApiHandle, RawClient, Scratch


@asynccontextmanager
async def connected(api_server: ApiHandle) -> AsyncIterator[tuple[RawClient, Scratch]]:
    """A client, and names of one's own."""
    async with api_server.connect() as client, api_server.scratch(client) as scratch:
        yield client, scratch


def assert_refused(answer: Answer, status: int, reason: str) -> None:
    """The answer is a `Status` object of this code and reason."""
    assert (answer.status, answer.body["kind"], answer.body["status"]) == (status, "Status", "Failure"), answer.text
    assert (answer.body["reason"], answer.body["code"]) == (reason, status)


def causes(answer: Answer) -> set[tuple[str, str]]:
    """The fields that a 422 names, each with its reason."""
    return {(cause["field"], cause["reason"]) for cause in answer.body["details"]["causes"]}
