"""Lists API objects for the diagnosis commands. What may not be listed becomes a finding instead of an error."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from pydra import __version__
from pydra.diagnosis import Finding, Level
from pydra.errors import KubeError, NotFound
from pydra.kube.api_resources import DEVICE_TAINT_RULES, EVENTS, JsonObject, Resource
from pydra.kube.client import KubeClient
from pydra.kube.credentials import load_credentials
from pydra.kube.version import parse_version
from pydra.settings import Settings

_SELECTS_ALL = (1, 37)
"""The last release in which a DeviceTaintRule without a selector selects every device."""
_DEADLINE = 5.0
_RETRY_FOR = 2.0
"""Seconds; somebody waits, and can repeat the command."""


class EventLine(msgspec.Struct, frozen=True, kw_only=True):
    """An Event: when it was last seen (RFC 3339), how often, and about what."""

    time: str
    type: str
    reason: str
    count: int
    object: str
    note: str
    source: str


@asynccontextmanager
async def open_cluster(settings: Settings) -> AsyncIterator[KubeClient]:
    """Yield a client with the credentials that the agent would use here, which gives up within seconds.

    Raises:
        SettingsError: there are no credentials.
    """
    credentials = await load_credentials(
        environ=os.environ, kubeconfig=settings.kubeconfig, verify_x509_strict=settings.verify_x509_strict
    )
    agent = f"pydra/{__version__}"
    async with KubeClient(credentials, user_agent=agent, deadline=_DEADLINE, retry_for=_RETRY_FOR) as client:
        yield client


class Reader:
    """Lists objects, each list once. What cannot be listed is added to `findings` as unknown."""

    def __init__(self, client: KubeClient) -> None:
        self.client = client
        self.findings: list[Finding] = []
        self._listed: dict[tuple[Resource, str, str], Sequence[JsonObject]] = {}
        self._rules: Sequence[JsonObject] | None = None

    async def list(self, resource: Resource, *, namespace: str = "", field_selector: str = "") -> Sequence[JsonObject]:
        """Return the objects; none if they cannot be listed."""
        wanted = (resource, namespace, field_selector)
        if wanted not in self._listed:
            self._listed[wanted] = await self._list(resource, namespace, field_selector)
        return self._listed[wanted]

    async def _list(self, resource: Resource, namespace: str, field_selector: str) -> Sequence[JsonObject]:
        try:
            return (await self.client.list(resource, namespace=namespace, field_selector=field_selector)).items
        except KubeError as error:
            advice = "run it with a kubeconfig that may" if error.status == 403 else ""
            if self.may_list(resource):
                self.findings.append(Finding(resource.plural, Level.UNKNOWN, str(error), advice))
            return ()

    async def list_taint_rules(self) -> Sequence[JsonObject]:
        """Return the DeviceTaintRules in the newest version that is served; most clusters serve none.

        One without a selector selects nothing, but every device up to Kubernetes 1.37 (kubernetes#141648).
        """
        if self._rules is None:
            self._rules = await self._list_taint_rules()
        return self._rules

    async def _list_taint_rules(self) -> Sequence[JsonObject]:
        for resource in DEVICE_TAINT_RULES:
            try:
                rules = (await self.client.list(resource)).items
                if all(one["spec"].get("deviceSelector") is not None for one in rules):
                    return rules
                version = parse_version(await self.client.fetch("/version"))
                if (version.major, version.minor) > _SELECTS_ALL:
                    return rules
                return [
                    {**one, "spec": {**one["spec"], "deviceSelector": one["spec"].get("deviceSelector") or {}}}
                    for one in rules
                ]
            except NotFound:
                continue
            except KubeError as error:
                found = f"{error}; taints that they give are not considered"
                self.findings.append(Finding(resource.plural, Level.UNKNOWN, found))
                break
        return ()

    def may_list(self, resource: Resource) -> bool:
        """Return whether no list of the resource has failed."""
        return all(one.subject != resource.plural for one in self.findings)

    async def list_events(
        self, kind: str, name: str, *, namespace: str = "default", uid: str = ""
    ) -> Sequence[EventLine]:
        """Return the Events about one object, or about all of the kind without a name, the oldest first.

        With a `uid`, those about an earlier object of the same name are left out.
        """
        selector = f"regarding.kind={kind}" + (f",regarding.name={name}" if name else "")
        found = await self.list(EVENTS, namespace=namespace, field_selector=selector)
        own = [one for one in found if not uid or (one.get("regarding") or {}).get("uid") in (None, "", uid)]
        return sorted(map(_parse_event, own), key=lambda event: event.time)


def _parse_event(body: JsonObject) -> EventLine:
    series, regarding = body.get("series") or {}, body.get("regarding") or {}
    times = (series.get("lastObservedTime"), body.get("deprecatedLastTimestamp"), body.get("eventTime"))
    source = body.get("reportingController") or (body.get("deprecatedSource") or {}).get("component") or ""
    return EventLine(
        time=next(filter(None, times), ""),
        type=body.get("type") or "",
        reason=body.get("reason") or "",
        count=series.get("count") or body.get("deprecatedCount") or 1,
        object=f"{regarding.get('kind', '')} {regarding.get('name', '')}",
        note=body.get("note") or "",
        source=source,
    )
