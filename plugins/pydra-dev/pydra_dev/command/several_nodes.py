"""`pydra dev --nodes N`: several nodes, each with the real agent, and what their pods do together.

A pod runs on each node; the last node dies and another one joins; at the end all is deleted, and nothing may be left.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, nullcontext
from typing import Any

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from pydra.errors import PydraError
from pydra_dev.api.errors import JsonObject
from pydra_dev.api.kinds import (
    EVENTS,
    KINDS,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Kind,
)
from pydra_dev.apiserver.custom_kinds import parse_definition
from pydra_dev.apiserver.verbs import Api, Query
from pydra_dev.command.backend_declarations import read_declarations
from pydra_dev.command.backend_programs import Programs, load_definitions, read_needs
from pydra_dev.command.options import Options
from pydra_dev.command.wait_for_step import RunError, describe_failure, wait_until
from pydra_dev.kubelet.observations import Called, ContainerCreated, HealthChanged, PodFailed, PodRunning, Step
from pydra_dev.manifests import Manifest, choose_manifests, create_object, find_kind, read_sample
from pydra_dev.node import (
    AgentProcess,
    EmbeddedNode,
    join_node,
    mark_lost,
    run_agent,
    run_node,
    scenario_environment,
)
from pydra_dev.output.descriptions import LONG, Paragraph, describe_event, describe_step, full_name
from pydra_dev.output.terminal import Printer
from pydra_dev.page.server import Page

MOST_NODES = 16
READY = "Ready"


class Member:
    """One node with its agent, which a task of its own serves until `leaves`."""

    def __init__(self, node: EmbeddedNode, agent: AgentProcess, left: anyio.Event) -> None:
        self.node = node
        self.agent = agent
        self.leaves = anyio.Event()
        self._left = left

    async def end(self) -> None:
        """End both."""
        self.leaves.set()
        await self._left.wait()


class NodesRun:
    """One run on new nodes. `explain` also says how to look around."""

    def __init__(self, options: Options, printer: Printer, _page: Page, *, explain: bool) -> None:
        self.changed = ""
        self._options = options
        self._printer = printer
        self._say = printer.say
        self._explain = explain
        self._needs = read_needs(options.backend)
        self._definitions = load_definitions(self._needs.definitions)
        self._kinds = [parse_definition(one).kind for one in self._definitions]
        self._scope = anyio.CancelScope()
        self._members = dict[str, Member]()
        self._running = set[str]()
        self._told = dict[tuple[str, ...], object]()
        self._labels = dict[str, object]()
        self._applied = list[JsonObject]()
        self._may_end = False
        self._first: EmbeddedNode
        self._api: Api
        self._tasks: TaskGroup
        self._programs: Programs

    def stop(self) -> None:
        """Clean up now."""
        self._scope.cancel()

    async def run(self, root: str, port: int) -> int | None:
        """The exit code; None when it was stopped."""
        options = self._options
        code: int | None = None
        async with AsyncExitStack() as stack:
            self._tasks = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(self._tasks.cancel_scope.cancel)
            first = run_node(
                self._hear("node-1"),
                node_name="node-1",
                root=root,
                port=port,
                version=options.kubernetes,
                definitions=self._definitions,
                stop_containers=self._stop_pod,
                probes=True,
            )
            self._first = await stack.enter_async_context(first)
            self._api = self._first.server.api
            self._say(Paragraph(headline=f"ready: API server {self._first.server.url}, nodes below {root}"))
            self._programs = Programs(self._needs, self._first, self._tasks, options.backend, self._say)
            stack.push_async_callback(self._programs.stop_all)
            self._tasks.start_soon(self._follow_api, name="follow the API")
            with self._scope:
                code = await self._try(self._show)
            self._may_end = True
            with anyio.CancelScope(shield=True):
                if (ended := await self._try(self._end)) or code is not None:
                    code = code or ended
                for member in self._members.values():
                    await member.end()
        return code

    async def _try(self, act: Callable[[], Any]) -> int:
        try:
            await act()
        except (RunError, PydraError) as error:
            self._say(describe_failure(error))
            return 1
        return 0

    # What is shown

    async def _show(self) -> None:
        options, count = self._options, self._options.nodes
        if self._needs.controller:
            await self._programs.start("controller", self._needs.controller, {"POD_NAME": "controller"})
        for number in range(1, count + 1):
            await self._add_node(number)
        declared = await read_declarations(options.backend)
        driver = await self._wait("all nodes publish devices", self._find_driver)
        sample = read_sample(options.backend, driver, declared.classes if declared is not None else {})
        if self._needs.manifests:
            own = (Manifest(source="the sample", body=body) for body in self._needs.manifests)
            sample = (*(one for one in sample if one.body["kind"] == "DeviceClass"), *own)
        manifests = choose_manifests(options.manifests, sample, (*KINDS, *self._kinds))
        for manifest in manifests:
            if manifest.body["kind"] != PODS.kind:
                self._apply(manifest)
        pods = [one for one in manifests if one.body["kind"] == PODS.kind]
        if options.manifests:
            await self._run_pods([self._apply(pod) for pod in pods])
        else:
            await self._run_pods([self._apply_on(pod, number) for pod in pods for number in range(1, count + 1)])
            await self._replace_node(pods)
        if not options.once:
            if self._explain:
                hints = (
                    f"export KUBECONFIG={self._first.server.kubeconfig}",
                    *(f"kubectl get {kind.plural} -A -o yaml" for kind in self._kinds),
                )
                self._say(Paragraph(headline="look around, and end with Ctrl-C:", details=hints))
            await anyio.sleep_forever()

    async def _replace_node(self, pods: Sequence[Manifest]) -> None:
        """The last node dies, its pods are deleted, and another one joins."""
        name, number = f"node-{self._options.nodes}", self._options.nodes + 1
        lost = self._list_pods(name)
        await self._lose_node(name)
        if any(self._find_conditions()):
            await self._wait(f"the loss of {name} is noticed", lambda: self._is_waited_for(name))
        for pod in lost:
            self._delete(PODS, pod)
        self._api.delete(NODES, name)
        self._say(Paragraph(headline=f"deleted: node {name}"))
        await self._wait("the other nodes are ready", self._is_ready)
        await self._add_node(number)
        await self._wait(f"node-{number} publishes devices", self._find_driver)
        await self._run_pods([self._apply_on(pod, number) for pod in pods])

    async def _run_pods(self, names: Sequence[str]) -> None:
        await self._wait(f"{', '.join(names)} run", lambda: self._running.issuperset(names))
        if any(self._find_conditions()):
            await self._wait("what was applied is ready", self._is_ready)

    async def _end(self) -> None:
        """Delete all, and find nothing left."""
        for found in reversed(self._applied):
            if (kind := find_kind(found, self._kinds)) is not None:
                self._delete(kind, found)
        if any(self._find_conditions()):
            await self._wait("the deletion begins", lambda: not self._is_ready())
        for pod in self._api.list(PODS).items:
            if not pod["metadata"].get("ownerReferences"):
                self._delete(PODS, pod)
        for found in self._applied:
            if (kind := find_kind(found, (RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES))) is not None:
                self._delete(kind, found)
        await self._wait("nothing is left", lambda: not self._find_left())
        self._say(Paragraph(headline="clean: no pod, claim, object or label, and no CDI spec on a node is left"))
        for name, member in self._members.items():
            if status := await member.agent.stop():
                raise RunError(f"the agent of {name} ended with status {status} when it was stopped")

    def _find_left(self) -> Sequence[str]:
        """What is left of all that happened, in the API and on the nodes."""
        kinds = (PODS, RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES, *self._kinds)
        left = [f"{kind.kind} {full_name(one)}" for kind in kinds for one in self._api.list(kind).items]
        left += [
            f"labels of node {node['metadata']['name']}"
            for node in self._api.list(NODES).items
            if node["metadata"].get("labels") != self._labels.get(node["metadata"]["name"])
        ]
        for member in self._members.values():
            left += os.listdir(member.node.cdi_directory)
            left += [info.key.name for info in member.node.find_held()]
            left += member.node.find_left_over()
        return left

    # Nodes

    async def _add_node(self, number: int) -> None:
        name = f"node-{number}"
        member = self._members[name] = await self._tasks.start(self._serve_node, name, number, name=name)
        self._labels[name] = self._api.get(NODES, name)["metadata"].get("labels")
        backend = self._options.backend
        self._say(Paragraph(headline=f"{name}: started: pydra-agent --backend {backend} (pid {member.agent.pid})"))

    async def _serve_node(self, name: str, number: int, *, task_status: TaskStatus[Member]) -> None:
        options = self._options
        joined = join_node(self._first, self._hear(name), node_name=name, stop_containers=self._stop_pod, probes=True)
        left = anyio.Event()
        try:
            async with nullcontext(self._first) if number == 1 else joined as node:
                environment = scenario_environment(options.backend, options.scenario, node.root)
                async with run_agent(node, options.backend, environment, options.agent_flags) as agent:
                    member = Member(node, agent, left)
                    task_status.started(member)
                    await member.leaves.wait()
        finally:
            left.set()

    async def _lose_node(self, name: str) -> None:
        """Its power fails, and the control plane notices that after a while."""
        member = self._members.pop(name)
        for pod in self._list_pods(name):
            await self._programs.kill(full_name(pod))
        os.kill(member.agent.pid, signal.SIGKILL)
        await member.agent.wait()
        await member.end()
        mark_lost(self._api, name)
        self._say(Paragraph(headline=f"lost: {name} has no power, and its pods are not ready any more"))

    def _list_pods(self, node: str) -> Sequence[JsonObject]:
        return self._api.list(PODS, Query(field_selector=f"spec.nodeName={node}")).items

    async def _stop_pod(self, pod: str) -> None:
        await self._programs.stop(pod)

    # What happens

    def _hear(self, node: str) -> Callable[[Step], None]:
        def report(step: Step) -> None:
            if isinstance(step, ContainerCreated):
                self._programs.note_container(node, step)
            if isinstance(step, PodRunning):
                self._running.add(step.pod)
            told = describe_step(step)
            if told is None or isinstance(step, HealthChanged):
                return
            short = msgspec.structs.replace(
                told, headline=f"{node}: {told.headline}", details=told.details if len(told.details) <= LONG else ()
            )
            if isinstance(step, PodFailed) or (isinstance(step, Called) and step.error):
                self._printer.say_failure((node, *told.details), short)
            else:
                self._say(short)

        return report

    async def _follow_api(self) -> None:
        """Tell each change of a condition, and which pods cannot be scheduled."""
        while True:
            wakeup = self._api.store.written.event
            for found, condition in self._find_conditions():
                self._tell_condition(found, condition)
            for event in self._api.list(EVENTS).items:
                lasts = event["reason"] == "FailedScheduling" and not event["message"].startswith("waiting for the")
                if lasts and self._is_new((event["metadata"]["uid"],), event["message"]):
                    self._say(describe_event(event))
            await wakeup.wait()

    def _tell_condition(self, found: JsonObject, condition: JsonObject) -> None:
        said = condition["status"], condition["reason"], condition["message"]
        if self._is_new((found["metadata"]["uid"], condition["type"]), said):
            what = f"{condition['type']}={condition['status']}, {condition['reason']}: {condition['message']}"
            self._say(Paragraph(headline=f"{found['kind']} {full_name(found)}: {what}"))

    def _is_new(self, key: tuple[str, ...], said: object) -> bool:
        before = self._told.get(key, "")
        self._told[key] = said
        return before != said

    def _find_conditions(self) -> Sequence[tuple[JsonObject, JsonObject]]:
        """The conditions of all objects of the backend's own kinds."""
        return [
            (found, condition)
            for kind in self._kinds
            for found in self._api.list(kind).items
            for condition in (found.get("status") or {}).get("conditions") or ()
        ]

    def _is_ready(self) -> bool:
        return all(one["status"] == "True" for _, one in self._find_conditions() if one["type"] == READY)

    def _is_waited_for(self, node: str) -> bool:
        """Whether an object that is not ready names the node as a reason; others may keep it from being ready, too."""
        conditions = [one for _, one in self._find_conditions() if one["type"] == READY and one["status"] == "False"]
        return any(f"{node}: " in one["message"] for one in conditions)

    def _find_driver(self) -> str:
        """The driver, once each node has devices of it."""
        slices = [one["spec"] for one in self._api.list(RESOURCE_SLICES).items if one["spec"].get("devices")]
        published = {one.get("nodeName") for one in slices}
        return str(slices[0]["driver"]) if published >= self._members.keys() else ""

    # Objects

    def _apply(self, manifest: Manifest) -> str:
        created = create_object(self._api, manifest, (*KINDS, *self._kinds))
        self._applied.append(created)
        self._say(Paragraph(headline=f"applied: {created['kind']} {created['metadata']['name']}"))
        return full_name(created) if "namespace" in created["metadata"] else ""

    def _apply_on(self, pod: Manifest, number: int) -> str:
        """A pod for one node."""
        metadata = {**pod.body["metadata"], "name": f"{pod.body['metadata']['name']}-{number}"}
        spec = {**pod.body["spec"], "nodeSelector": {"kubernetes.io/hostname": f"node-{number}"}}
        return self._apply(Manifest(source=pod.source, body={**pod.body, "metadata": metadata, "spec": spec}))

    def _delete(self, kind: Kind, found: JsonObject) -> None:
        metadata = found["metadata"]
        now = self._api.find(kind, metadata["name"], namespace=metadata.get("namespace", ""))
        if now is not None and "deletionTimestamp" not in now["metadata"]:
            self._api.delete_object(kind, found)
            self._say(Paragraph(headline=f"deleted: {kind.kind} {full_name(found)}"))

    async def _wait(self, what: str, look: Callable[[], Any]) -> Any:
        deadline = self._options.deadline
        try:
            return await wait_until(what, look, say=self._say, deadline=deadline, refuse=self._refuse_hopeless)
        except RunError as error:
            left = f"; left: {', '.join(self._find_left())}" if self._may_end and not error.details else ""
            raise RunError(f"{error}{left}", error.details) from error

    def _refuse_hopeless(self) -> None:
        """Raise RunError when an agent or a program has ended."""
        for name, member in self._members.items():
            if member.agent.returncode is not None:
                log = member.agent.log_tail().splitlines()
                raise RunError(f"the agent of {name} ended with status {member.agent.returncode}", log)
        if self._programs.failed and not self._may_end:
            raise RunError(self._programs.failed)
