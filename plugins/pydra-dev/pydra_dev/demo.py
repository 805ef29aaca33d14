"""`pydra dev`: one pod on an embedded node, each step printed as it happens.

Every step has a deadline. If one is missed, the demo says what happened instead and ends with exit code 1.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec
import yaml

from pydra.errors import KubeError, NotFound
from pydra.kube.resources import (
    DEVICE_CLASSES,
    EVENTS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
)
from pydra_dev.allocator import AllocationError, Review
from pydra_dev.cdi_specs import Hook, Mount, read_registry
from pydra_dev.kubelet.steps import (
    Called,
    ContainerCreated,
    Deregistered,
    HealthChanged,
    PodEnded,
    PodFailed,
    PodRunning,
    Registered,
    RegistrationFailed,
    SlicesWiped,
    Step,
)
from pydra_dev.node import AgentProcess, EmbeddedNode, run_agent, run_node, scenario_environment
from pydra_dev.oci import OciSpec
from pydra_dev.scheduling import review_claim

NAMESPACE, POD = "default", "sample"
"""The pod in every sample."""


def read_sample(backend: str, driver: str) -> tuple[dict[str, Any], ...]:
    """The objects for a backend: its own sample, or the one that suits every driver."""
    folder = files("pydra_dev").joinpath("samples")
    own = folder.joinpath(f"{backend}.yaml")
    # Its own sample speaks of its own driver name; under another name only the general one is right.
    if own.is_file() and f": {driver}\n" in (text := own.read_text()):
        return tuple(yaml.safe_load_all(text))
    general = folder.joinpath("any.yaml").read_text().replace("DRIVER", driver)
    return tuple(yaml.safe_load_all(general))


LONG, SHOWN = 6, 3
"""Of a list with more than LONG items the first SHOWN are printed."""


def describe_changes(before: OciSpec, after: OciSpec) -> tuple[str, ...]:
    """One line for each thing that differs, in the order of the configuration; one for many mounts of a directory."""
    added = [f"env      {one}" for one in after.env if one not in before.env]
    added += [
        f"device   {one.path} ({one.type} {one.major}:{one.minor}, {one.access or 'no access'})"
        for one in after.devices
        if one not in before.devices
    ]
    added += _describe_mounts(one for one in after.mounts if one not in before.mounts)
    added += [f"hook     {_describe_hook(one)}" for one in after.hooks[len(before.hooks) :]]
    added += [
        f"network  {one.host_interface_name} as {one.name}"
        for one in after.net_devices
        if one not in before.net_devices
    ]
    if after.intel_rdt != before.intel_rdt:
        added.append(f"rdt      {after.intel_rdt}")
    added += [f"gid      {gid}" for gid in after.additional_gids if gid not in before.additional_gids]
    return tuple(added)


def shorten(value: Any) -> Any:
    """Plain JSON with the ends of its long lists counted instead."""
    if isinstance(value, Mapping):
        return {key: shorten(item) for key, item in value.items()}
    if isinstance(value, list):
        shown = value if len(value) <= LONG else [*value[:SHOWN], f"... and {len(value) - SHOWN} more"]
        return [shorten(item) for item in shown]
    return value


def _describe_mounts(mounts: Iterable[Mount]) -> Iterator[str]:
    """Those of one directory, from one directory and with the same options, together."""
    groups: dict[tuple[str, str, tuple[str, ...]], list[Mount]] = {}
    for one in mounts:
        where = os.path.dirname(one.container_path), os.path.dirname(one.host_path), one.options
        groups.setdefault(where, []).append(one)
    for (inside, outside, options), found in groups.items():
        if len(found) <= LONG:
            yield from (f"mount    {one.container_path} from {one.host_path} ({','.join(options)})" for one in found)
            continue
        names = ", ".join(os.path.basename(one.container_path) for one in found[:SHOWN])
        what = f"{len(found)} in {inside} from {outside} ({','.join(options)})"
        yield f"mount    {what}: {names}, and {len(found) - SHOWN} more"


def _describe_hook(hook: Hook) -> str:
    arguments = hook.args or (hook.path,)
    rest = "" if len(arguments) <= LONG else f" ... and {len(arguments) - LONG} more arguments"
    return f"{hook.hook_name} {' '.join(arguments[:LONG])}{rest}"


SHOWN_DEVICES = 3


class Paragraph(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened."""

    headline: str
    details: tuple[str, ...] = ()


def describe_step(step: Step) -> Paragraph | None:  # noqa: PLR0911 - one case for each kind of step
    """What is printed; None for what only repeats."""
    match step:
        case Registered(plugin=plugin):
            return Paragraph(
                headline=f"registered: driver {plugin.driver} with the kubelet, service {plugin.service.value}",
                details=(f"socket   {plugin.socket}", f"endpoint {plugin.endpoint}"),
            )
        case Deregistered(plugin=plugin):
            return Paragraph(headline=f"deregistered: driver {plugin.driver}, its registration socket is gone")
        case RegistrationFailed(socket=socket, message=message):
            return Paragraph(headline=f"not registered: {os.path.basename(socket)}: {message}")
        case SlicesWiped(driver=driver, names=names):
            whose = f"of driver {driver}" if driver else "of this node"
            return Paragraph(headline=f"wiped: {len(names)} ResourceSlices {whose}") if names else None
        case Called():
            return _describe_call(step)
        case PodFailed(pod=pod, reason=reason, message=message):
            return Paragraph(headline=f"pod {pod}: {reason}", details=(message,))
        case ContainerCreated():
            return Paragraph(
                headline=f"container created: {step.container} of pod {step.pod}, changed by its CDI devices",
                details=(*(f"+ {line}" for line in describe_changes(step.before, step.after)),),
            )
        case PodRunning(pod=pod):
            return Paragraph(headline=f"running: pod {pod}")
        case PodEnded(pod=pod):
            return Paragraph(headline=f"ended: pod {pod}")
        case HealthChanged(driver=driver, devices=devices):
            return _describe_health(driver, devices)


def _describe_call(call: Called) -> Paragraph:
    took = f"{call.seconds * 1000:.1f} ms"
    claims = ", ".join(call.claims)
    if call.error:
        return Paragraph(headline=f"{call.method} failed for {claims} after {took}", details=(call.error,))
    word = "prepared" if call.method == "NodePrepareResources" else "unprepared"
    details = tuple(f"CDI id   {one}" for one in call.cdi_ids)
    return Paragraph(headline=f"{word}: claim {claims} by driver {call.driver} in {took}", details=details)


def _describe_health(driver: str, devices: Sequence[tuple[str, str, str]]) -> Paragraph:
    if not devices:
        return Paragraph(headline=f"health: driver {driver} stopped reporting, its devices are Unknown")
    said = (f"{count} {health}" for health, count in sorted(Counter(health for _, _, health in devices).items()))
    sick = tuple(f"{pool}/{device} is {health}" for pool, device, health in devices if health != "Healthy")
    return Paragraph(headline=f"health: devices of {driver}: {', '.join(said)}", details=sick[:SHOWN_DEVICES])


def describe_slices(slices: Iterable[Mapping[str, Any]]) -> Paragraph:
    """What a driver has published."""
    found = list(slices)
    devices = [device for one in found for device in one["spec"].get("devices") or ()]
    details = [_describe_device(device) for device in devices[:SHOWN_DEVICES]]
    if len(devices) > SHOWN_DEVICES:
        details.append(f"and {len(devices) - SHOWN_DEVICES} more")
    return Paragraph(
        headline=f"published: {len(devices)} devices in {len(found)} ResourceSlices", details=tuple(details)
    )


def _describe_device(device: Mapping[str, Any]) -> str:
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    said = [f"{name}={value['value']}" for name, value in sorted(capacity.items())]
    said += [f"{name.rpartition('/')[2]}={next(iter(value.values()))}" for name, value in sorted(attributes.items())]
    return f"{device['name']}: {' '.join(said)}"


def describe_allocation(claim: Mapping[str, Any]) -> Paragraph:
    """What the scheduler gave to a claim."""
    results = claim["status"]["allocation"]["devices"].get("results") or ()
    return Paragraph(
        headline=f"allocated: claim {claim['metadata']['namespace']}/{claim['metadata']['name']}",
        details=tuple(
            f"request {one['request']} gets device {one['device']} of pool {one['pool']}, driver {one['driver']}"
            for one in results
        ),
    )


def describe_others(reviews: Sequence[Review]) -> tuple[str, ...]:
    """Why a claim did not get the other devices, one line for each reason."""
    by_reason: dict[str, list[str]] = {}
    for review in reviews:
        if not review.picked:
            reason = review.reason or "free too, but the first that fits is taken"
            by_reason.setdefault(f"request {review.request}: {reason}", []).append(review.device[-1])
    return tuple(f"not {_list_some(names)}: {reason}" for reason, names in by_reason.items())


def _list_some(names: Sequence[str], most: int = 4) -> str:
    more = len(names) - most
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:most])} and {more} more"


def describe_cdi_spec(path: str, content: bytes) -> Paragraph:
    """A CDI spec file, laid out for reading: what is on disk, but for the ends of long lists."""
    shown = msgspec.json.format(msgspec.json.encode(shorten(msgspec.json.decode(content))), indent=2).decode()
    return Paragraph(headline=f"CDI spec: {path}", details=tuple(shown.splitlines()))


def describe_hints(root: str, kubeconfig: str, http_address: str, pid: int) -> str:
    """How to look around while the node stays up."""
    return f"""
The node stays up. From another terminal:

  export KUBECONFIG={kubeconfig}
  kubectl get resourceslices,deviceclasses,resourceclaims,pods -A -o yaml
  kubectl delete pod {POD}
  curl -s http://{http_address}/metrics
  tail -f {root}/agent.log
  ls -lR {root}
  kill -9 {pid}

These show the API objects, delete the pod, show the agent's metrics and log, list sockets, records and CDI files,
and kill the agent. Ctrl-C here stops everything.
"""


def render(paragraph: Paragraph, seconds: float) -> str:
    """Lines for a terminal, the time since the start in front."""
    margin = " " * 12
    return "\n".join([f"{seconds:8.3f} s  {paragraph.headline}", *(f"{margin}  {line}" for line in paragraph.details)])


STEP_DEADLINE = 30.0
LOOK_INTERVAL = 0.02
"""Seconds between two looks at the API server or at a directory while the demo waits."""
INTERRUPTED = 130
POD_ATTEMPTS = 4
"""After so many failures of the sample pod the demo gives up."""
NEVER_SERVED = ("BackendContract", "BackendNotServed")
"""The reasons of Events after which no driver registers."""
RESOURCES = {one.kind: one for one in (DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, PODS)}
FoundT = TypeVar("FoundT")
StepT = TypeVar("StepT", bound=Step)


class DemoError(Exception):
    """A step did not happen; the text says which one."""


def run(
    *, backend: str = "sim", scenario: str | None = None, once: bool = False, deadline: float = STEP_DEADLINE
) -> int:
    """Run the demo on standard output; the exit code. Without `once` it runs until SIGINT or SIGTERM."""
    scenario_environment(backend, scenario, "")  # refuses a wrong one before anything starts
    return anyio.run(lambda: run_until_signal(Demo(backend, scenario, once=once, deadline=deadline)))


async def run_until_signal(demo: Demo) -> int:
    """Run until the demo or a signal ends it; the exit code."""

    async def end_on_signal() -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                demo.stop()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(end_on_signal, name="signals")
        result = await demo.run()
        tasks.cancel_scope.cancel()
    return result


class Demo:
    """One run. `write` gets a paragraph at a time, `deadline` is in seconds and for each step."""

    def __init__(
        self,
        backend: str,
        scenario: str | None = None,
        *,
        once: bool,
        deadline: float = STEP_DEADLINE,
        write: Callable[[str], None] = lambda text: print(text, flush=True),  # noqa: T201 - this is what it is for
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._scenario = scenario
        self._once = once
        self._deadline = deadline
        self._write = write
        self._clock = clock
        self._start = clock()
        self._steps: list[Step] = []
        self._scope = anyio.CancelScope()
        self._agent: AgentProcess | None = None
        self._cdi_directory = ""

    def stop(self) -> None:
        """Stop now, in order: the agent first."""
        self._scope.cancel()

    async def run(self) -> int:
        """From an empty node to the end; the exit code."""
        with self._scope:
            async with run_node(self._on_step) as node:
                self._cdi_directory = node.cdi_directory
                self._say(
                    Paragraph(headline=f"ready: API server {node.server.url}, kubelet below {node.settings.root}")
                )
                environment = scenario_environment(self._backend, self._scenario, node.root)
                async with run_agent(node, self._backend, environment) as agent:
                    self._agent = agent
                    return await self._run_with(node, agent)
        return INTERRUPTED if self._once else 0

    async def _run_with(self, node: EmbeddedNode, agent: AgentProcess) -> int:
        try:
            await self._show_start(node, agent)
            await (self._show_end(node, agent) if self._once else self._stay(node, agent))
        except (DemoError, KubeError) as error:
            self._say(Paragraph(headline=f"FAILED: {error}", details=tuple(await self._explain(node, agent))))
            return 1
        return 0

    async def _show_start(self, node: EmbeddedNode, agent: AgentProcess) -> None:
        self._say(Paragraph(headline=f"started: pydra-agent --backend {self._backend} (pid {agent.pid})"))
        registered = await self._wait("the driver registers with the kubelet", lambda: self._find_registered(node))
        driver = registered.plugin.driver
        slices = await self._wait("the driver publishes its devices", lambda: _find_slices(node, driver))
        self._say(describe_slices(slices))
        sample = read_sample(self._backend, driver)
        for body in sample:
            resource, metadata = RESOURCES[body["kind"]], body["metadata"]
            await node.client.create(resource, body, namespace=metadata.get("namespace", ""))
            self._say(Paragraph(headline=f"applied: {body['kind']} {metadata['name']}"))
        claim = await self._wait("the claim is allocated", lambda: _find_claim(node))
        self._say(describe_allocation(claim))
        self._show_others(node, claim)
        await self._wait_step(Called, "the claim is prepared", lambda call: not call.error)
        await self._wait_step(PodRunning, "the pod runs")

    def _show_others(self, node: EmbeddedNode, claim: JsonObject) -> None:
        with suppress(AllocationError):  # the devices may have changed since
            others = describe_others(review_claim(node.server.api, claim, node.settings.node_name))
            if others:
                self._say(Paragraph(headline="the other devices:", details=others))

    async def _show_end(self, node: EmbeddedNode, agent: AgentProcess) -> None:
        await node.client.delete(PODS, POD, namespace=NAMESPACE)
        self._say(Paragraph(headline=f"deleted: pod {NAMESPACE}/{POD}"))
        await self._wait_step(PodEnded, "the pod ends")
        await self._wait("the CDI spec is removed", lambda: _find_nothing(node.cdi_directory))
        await self._wait("the claim is deleted", lambda: _find_no_claims(node))
        self._say(Paragraph(headline="clean: no CDI spec and no claim is left"))
        self._agent = None  # it may end now
        if status := await agent.stop():
            raise DemoError(f"the agent ended with status {status} when told to stop")
        self._say(Paragraph(headline="stopped: pydra-agent"))

    async def _stay(self, node: EmbeddedNode, agent: AgentProcess) -> None:
        self._write(describe_hints(node.root, str(node.server.kubeconfig), agent.http_address, agent.pid))
        while True:
            self._refuse_dead_agent()
            await anyio.sleep(1)

    def _on_step(self, step: Step) -> None:
        self._steps.append(step)
        if paragraph := describe_step(step):
            self._say(paragraph)
        if isinstance(step, Called) and step.cdi_ids:
            for path, content in read_specs(self._cdi_directory, step.cdi_ids):
                self._say(describe_cdi_spec(path, content))

    def _say(self, paragraph: Paragraph) -> None:
        self._write(render(paragraph, self._clock() - self._start))

    async def _find_registered(self, node: EmbeddedNode) -> Registered | None:
        """The registration; raises DemoError when the agent has said that there will be none."""
        if found := next((step for step in self._steps if isinstance(step, Registered)), None):
            return found
        for event in (await node.client.list(EVENTS)).items:
            if event.get("reason") in NEVER_SERVED:
                raise DemoError(f"the agent does not serve the backend; the reason is below ({event['reason']})")
        return None

    async def _wait_step(self, kind: type[StepT], what: str, wanted: Callable[[StepT], bool] = lambda _: True) -> StepT:
        async def look() -> StepT | None:
            return next((step for step in self._steps if isinstance(step, kind) and wanted(step)), None)

        return await self._wait(what, look)

    async def _wait(self, what: str, look: Callable[[], Awaitable[FoundT | None]]) -> FoundT:
        """What `look` finds, as soon as it finds something; raises DemoError."""
        with anyio.move_on_after(self._deadline):
            while (found := await look()) is None:
                self._refuse_dead_agent()
                self._refuse_failing_pod()
                await anyio.sleep(LOOK_INTERVAL)
            return found
        raise DemoError(f"timed out after {self._deadline:g} s waiting until {what}")

    def _refuse_dead_agent(self) -> None:
        if self._agent is not None and self._agent.returncode is not None:
            raise DemoError(f"the agent ended with status {self._agent.returncode}")

    def _refuse_failing_pod(self) -> None:
        failures = [step for step in self._steps if isinstance(step, PodFailed)]
        if len(failures) >= POD_ATTEMPTS:
            raise DemoError(f"the pod failed {len(failures)} times, most recently with {failures[-1].reason}")

    async def _explain(self, node: EmbeddedNode, agent: AgentProcess) -> list[str]:
        """What the cluster and the agent say themselves."""
        try:
            events = (await node.client.list(EVENTS)).items
        except KubeError as error:
            events = ()
            self._say(Paragraph(headline=f"no Events: {error}"))
        told = [f"Event {one.get('reason', '')}: {one.get('note') or one.get('message', '')}" for one in events]
        return [*told, "the end of the agent's log:", *(f"  {line}" for line in agent.log_tail().splitlines())]


async def _find_slices(node: EmbeddedNode, driver: str) -> tuple[JsonObject, ...] | None:
    """The driver's slices once its pool is complete and has devices."""
    found = (await node.client.list(RESOURCE_SLICES, field_selector=f"spec.driver={driver}")).items
    complete = found and len(found) == found[0]["spec"]["pool"]["resourceSliceCount"]
    return found if complete and any(one["spec"].get("devices") for one in found) else None


async def _find_claim(node: EmbeddedNode) -> JsonObject | None:
    """The pod's claim once it is allocated."""
    pod = await node.client.get(PODS, POD, namespace=NAMESPACE)
    for status in pod.get("status", {}).get("resourceClaimStatuses") or ():
        try:
            claim = await node.client.get(RESOURCE_CLAIMS, status["resourceClaimName"], namespace=NAMESPACE)
        except NotFound:
            continue
        if claim.get("status", {}).get("allocation"):
            return claim
    return None


def read_specs(directory: str, cdi_ids: Sequence[str]) -> tuple[tuple[str, bytes], ...]:
    """The CDI files that have these devices, and what is in them."""
    registry = read_registry([directory])
    files = sorted({registry.devices[one].file for one in cdi_ids if one in registry.devices})
    return tuple((file, Path(file).read_bytes()) for file in files)


async def _find_nothing(directory: str) -> bool | None:
    return None if os.listdir(directory) else True


async def _find_no_claims(node: EmbeddedNode) -> bool | None:
    return None if (await node.client.list(RESOURCE_CLAIMS)).items else True
