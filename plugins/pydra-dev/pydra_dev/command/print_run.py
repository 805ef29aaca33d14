"""What happens in a run of `pydra dev`, printed as it happens: the kubelet's steps, the API's objects, and the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import anyio
import msgspec

from pydra_dev.api.errors import JsonObject
from pydra_dev.api.kinds import EVENTS, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from pydra_dev.api.pod_fields import claim_names
from pydra_dev.apiserver.verbs import Api
from pydra_dev.container_runtime.cdi_specs import read_specs
from pydra_dev.kubelet.observations import Called, ContainerCreated, PodFailed, PodRunning, Registered, Step
from pydra_dev.node import AgentProcess, EmbeddedNode
from pydra_dev.output.descriptions import (
    describe_allocation,
    describe_cdi_spec,
    describe_device_changes,
    describe_event,
    describe_log,
    describe_network,
    describe_others,
    describe_step,
    describe_unused,
    list_published,
)
from pydra_dev.output.terminal import Printer
from pydra_dev.page.server import Page
from pydra_dev.scheduler.allocator import AllocationError
from pydra_dev.scheduler.device_taint_eviction import EVICTION
from pydra_dev.scheduler.scheduler import BINDING, review_claim

LOG_INTERVAL = 0.1
FATAL = frozenset(
    {"BackendContract", "BackendNotServed", "BackendSettings", "BackendStartFailed", "BackendRestoreFailed"}
    | {"ClusterUnsupported", "DevicesStale", "RegistrationRefused"}
)
"""The reasons of Events on the node after which nothing will be prepared before the backend changes."""


class RunReport:
    """Prints what happens on the node, and keeps what the run waits for; the page is notified of changes.

    `over`: steps are not printed any more. `fatal`: the reason of an Event that is in FATAL. `is_bare`: a container was
    created without CDI devices. `network`: a claim's status has the data of a network device.
    """

    def __init__(self, printer: Printer, page: Page) -> None:
        self._node: EmbeddedNode
        self._api: Api
        self._agent: AgentProcess
        self._printer = printer
        self._say = printer.say
        self._page = page
        self._printed: set[str] = set()
        self._log_read = 0
        self.over = False
        self.registered: Registered | None = None
        self.fatal = ""
        self.failures: Counter[str] = Counter()
        self.ran: set[str] = set()
        self.is_bare = False
        self.network = anyio.Event()
        self._driver = ""
        self._devices: tuple[str, ...] = ()

    def begin(self, node: EmbeddedNode, agent: AgentProcess) -> None:
        """From now on the agent runs on this node."""
        self._node, self._api, self._agent = node, node.server.api, agent

    def follow(self, step: Step) -> None:
        """Remember and print what the kubelet did."""
        self._remember(step)
        paragraph = describe_step(step)
        if paragraph is None or self.over:
            return
        if isinstance(step, Called) and step.error:
            self._printed.add(step.error)
            headline = f"{step.method} failed for {', '.join(step.claims)}"
            self._printer.say_failure((headline, step.error), msgspec.structs.replace(paragraph, headline=headline))
        elif isinstance(step, PodFailed):
            if not any(error in step.message for error in self._printed):
                self._printer.say_failure((step.pod, step.reason, step.message), paragraph)
        else:
            self._say(paragraph)
        if isinstance(step, Called) and step.cdi_ids:
            for path, content in read_specs(self._node.cdi_directory, step.cdi_ids):
                self._say(describe_cdi_spec(path, content))

    def _remember(self, step: Step) -> None:
        match step:
            case Registered():
                self.registered = step
            case PodFailed():
                self.failures[step.pod] += 1
            case PodRunning():
                self.ran.add(step.pod)
            case ContainerCreated():
                self.is_bare |= not step.cdi_ids
            case Called():
                self.print_log()

    async def follow_api(self) -> None:
        """Print each allocation, and what the agent and the scheduler say in Events."""
        while True:
            wakeup = self._api.store.written.event
            self._page.changed.notify()
            self._print_device_changes()
            self._print_allocations()
            self._print_events()
            await wakeup.wait()

    def note_published(self, driver: str) -> None:
        """Print from now on which devices of the driver come and go."""
        self._driver, self._devices = driver, self._list_published(driver) or ()

    def _list_published(self, driver: str) -> tuple[str, ...] | None:
        return list_published(one for one in self._api.list(RESOURCE_SLICES).items if one["spec"]["driver"] == driver)

    def _print_device_changes(self) -> None:
        devices = self._list_published(self._driver) if self._driver and not self.over else None
        if devices is not None and (changes := describe_device_changes(self._devices, devices)):
            self._devices = devices
            self._say(changes)

    def _print_allocations(self) -> None:
        for claim in self.list_allocated():
            uid, network = claim["metadata"]["uid"], describe_network(claim)
            if network is not None and str(network) not in self._printed:
                self._printed.add(str(network))
                self.network.set()
                self._say(network)
            if uid in self._printed:
                continue
            self._printed.add(uid)
            paragraph = describe_allocation(claim)
            self._say(msgspec.structs.replace(paragraph, details=(*paragraph.details, *self._explain_others(claim))))
            drivers = {one["spec"]["driver"] for one in self._api.list(RESOURCE_SLICES).items}
            if unused := describe_unused(claim, drivers):
                self._printer.say_failure((unused.headline, *unused.details), unused)

    def list_allocated(self) -> Sequence[JsonObject]:
        """The claims that have an allocation."""
        return [one for one in self._api.list(RESOURCE_CLAIMS).items if one.get("status", {}).get("allocation")]

    def _print_events(self) -> None:
        for event in self._api.list(EVENTS).items:
            uid, kind = event["metadata"]["uid"], event["involvedObject"]["kind"]
            # What a claim or a pod failed of is in the kubelet's steps.
            unscheduled = kind == PODS.kind and event["reason"] == "FailedScheduling"
            shown = event["reason"] in {BINDING, EVICTION} or (
                event["type"] != "Normal" and (unscheduled or kind == "Node")
            )
            if uid in self._printed or not shown:
                continue
            self._printed.add(uid)
            if event["reason"] in FATAL:
                self.fatal = event["reason"]
            paragraph = describe_event(event)
            if event["reason"] == BINDING:
                self._say(paragraph)
                continue
            if unscheduled:
                others = self._explain_pending(event["involvedObject"])
                paragraph = msgspec.structs.replace(paragraph, details=(*paragraph.details, *others))
            self._printer.say_failure((paragraph.headline, *paragraph.details), paragraph)

    async def follow_log(self, *, is_watched: bool) -> None:
        """Print what the backend prints and logs; if the page is watched, notify it that there is another process."""
        backends: tuple[int, ...] = ()
        while True:
            await anyio.sleep(LOG_INTERVAL)
            self.print_log()
            if is_watched and (found := self._agent.find_backends()) != backends:
                backends = found
                self._page.changed.notify()

    def print_log(self) -> None:
        """Print what the log has that was not printed yet."""
        with open(self._agent.log, "rb") as log:
            log.seek(self._log_read)
            text = log.read()
        complete = text[: text.rfind(b"\n") + 1]
        self._log_read += len(complete)
        for paragraph in describe_log(complete.decode(errors="replace")):
            if paragraph.details:
                self._printer.say_failure((paragraph.headline, *paragraph.details), paragraph)
            else:
                self._say(paragraph)

    def _explain_others(self, claim: JsonObject) -> tuple[str, ...]:
        with suppress(AllocationError):  # the devices may have changed since
            return describe_others(review_claim(self._api, claim, self._node.settings.node_name).devices)
        return ()

    def _explain_pending(self, reference: JsonObject) -> tuple[str, ...]:
        namespace = reference["namespace"]
        pod = self._api.find(PODS, reference["name"], namespace=namespace)
        names = [name for name in claim_names(pod).values() if name] if pod is not None else []
        claims = [self._api.find(RESOURCE_CLAIMS, name, namespace=namespace) for name in names]
        return tuple(
            line
            for claim in claims
            if claim is not None and not claim.get("status", {}).get("allocation")
            for line in self._explain_others(claim)
        )
