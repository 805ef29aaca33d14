"""`pydra dev`: a run on one node, with the real agent and a backend, and what happens there, printed as it happens.

Every step has a deadline. If one is missed, or cannot happen any more, the run says why and ends with exit code 1, or
waits for a change of the backend.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import anyio

from pydra.errors import PydraError, SettingsError
from pydra_dev.api.errors import JsonObject
from pydra_dev.api.kinds import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from pydra_dev.api.pod_fields import is_finished
from pydra_dev.apiserver.verbs import Api, Query
from pydra_dev.command.backend_declarations import read_declarations
from pydra_dev.command.delete_pods import PodDeletion
from pydra_dev.command.options import Options
from pydra_dev.command.print_run import RunReport
from pydra_dev.command.real_containers import Containers, ends_by_itself, find_runtime, run_containers
from pydra_dev.command.wait_for_step import RunError, describe_failure, wait_until
from pydra_dev.command.watch_source_files import find_sources, wait_for_change
from pydra_dev.kubelet.observations import Called, ContainerCreated, Step
from pydra_dev.manifests import Manifest, choose_manifests, create_object, read_sample
from pydra_dev.node import AgentProcess, EmbeddedNode, run_agent, run_node, scenario_environment
from pydra_dev.output.descriptions import (
    Paragraph,
    describe_hints,
    describe_sample,
    describe_slices,
    full_name,
    list_published,
)
from pydra_dev.output.terminal import Printer
from pydra_dev.page.operations import Operations
from pydra_dev.page.server import Page

SETTLED = 1.0
"""Seconds after which an empty pool, or a pod that waits or gets nothing, is believed to stay so."""
POD_ATTEMPTS = 3
"""After so many failures of one of its pods the run gives up."""
QUICK_DEATH = 5.0
ENDLESS_SECONDS = 3.0
"""How long real containers that do not end by themselves run with `once`."""
FoundT = TypeVar("FoundT")


class SingleNodeRun:
    """One run on a new node, which the page shows; `explain` also prints the sample, and how to look around."""

    def __init__(self, options: Options, printer: Printer, page: Page, *, explain: bool) -> None:
        self.changed = ""
        self._page = page
        self._explain = explain
        self._options = options
        self._printer = printer
        self._say = printer.say
        self._report = RunReport(printer, page)
        self._unscheduled: dict[str, float] = {}
        self._empty_since: float | None = None
        self._pods: tuple[str, ...] = ()
        self._may_end = self._can_simulate = False
        self._containers: Containers | None = None
        self._node: EmbeddedNode
        self._api: Api
        self._agent: AgentProcess
        self._operations: Operations
        self._pod_deletion: PodDeletion
        self._scope = anyio.CancelScope()

    def stop(self) -> None:
        """Clean up now."""
        self._scope.cancel()

    async def run(self, root: str, port: int) -> int | None:
        """The exit code; None when it was stopped, or a watched file has changed, and nothing is left prepared."""
        options = self._options
        code: int | None = None
        async with (
            self._run_containers(root),
            run_node(
                self._on_step,
                root=root,
                port=port,
                version=self._options.kubernetes,
                stop_containers=self._stop_containers,
            ) as node,
        ):
            self._node, self._api = node, node.server.api
            self._say(Paragraph(headline=f"ready: API server {node.server.url}, kubelet below {node.settings.root}"))
            # With asyncio's debug mode the backend's process logs what blocks its event loop.
            debug = {"PYTHONASYNCIODEBUG": "1"}
            environment = {**scenario_environment(options.backend, options.scenario, node.root), **debug}
            async with (
                run_agent(node, options.backend, environment, options.agent_flags) as agent,
                anyio.create_task_group() as tasks,
            ):
                self._agent = agent
                self._report.begin(node, agent)
                self._operations = Operations(node, agent)
                self._page.show(self._operations)
                self._pod_deletion = PodDeletion(node, agent, self._say)
                tasks.start_soon(self._report.follow_api, name="follow the API")
                follow_log = partial(self._report.follow_log, is_watched=options.web is not None)
                tasks.start_soon(follow_log, name="follow the agent's log")
                try:
                    code = await self._show_until_stopped()
                finally:
                    self._report.over = False
                    if not await self._pod_deletion.run(options.deadline) and not self.changed:
                        code = 1
                tasks.cancel_scope.cancel()
            self._page.show(None)
        return code

    async def _show_until_stopped(self) -> int | None:
        options = self._options
        places = (*find_sources(options.backend), *options.manifests) if options.watch else ()
        with self._scope:
            async with anyio.create_task_group() as tasks:
                if options.watch:
                    tasks.start_soon(self._watch, places, name="watch files")
                shown = await self._show()
                if options.watch:
                    self._say(Paragraph(headline=f"waiting for a change of {', '.join(places)}"))
                if options.watch or options.web is not None:
                    await anyio.sleep_forever()
                tasks.cancel_scope.cancel()
            return shown
        return None

    @asynccontextmanager
    async def _run_containers(self, root: str) -> AsyncIterator[None]:
        """Run containers for real inside the block, if that is asked for."""
        if self._options.run is None:
            yield
            return
        async with run_containers(find_runtime(self._options.run), root, self._tell_container) as containers:
            self._containers = containers
            yield
            self._containers = None

    async def _stop_containers(self, pod: str) -> None:
        if self._containers is not None:
            await self._containers.stop(pod)

    def _tell_container(self, container: str, line: str) -> None:
        self._say(Paragraph(headline=f"container {container}: {line}"))

    async def _watch(self, places: Sequence[str]) -> None:
        self.changed = await wait_for_change(places)
        self.stop()

    async def _show(self) -> int:
        options = self._options
        try:
            await self._show_start()
            await (self._show_end() if options.once else self._stay())
        except (RunError, PydraError) as error:
            self._report.print_log()
            log: tuple[str, ...] = ()
            if not (isinstance(error, RunError | SettingsError) and getattr(error, "explained", True)):
                lines = self._agent.log_tail().splitlines()
                log = ("the end of the agent's log:", *(f"  {line}" for line in lines))
            self._say(describe_failure(error, log))
            self._report.over = options.web is None
            self._operations.failure = str(error)
            return 1
        return 0

    async def _show_start(self) -> None:
        options = self._options
        self._say(Paragraph(headline=f"started: pydra-agent --backend {options.backend} (pid {self._agent.pid})"))
        declared = await read_declarations(options.backend)
        has_scenarios = declared is not None and "scenario" in declared.settings
        self._can_simulate = has_scenarios and not options.scenario
        if options.scenario and declared is not None and not has_scenarios:
            headline = f"--scenario {options.scenario}: the backend has no setting `scenario`"
            hint = "it changes nothing, unless the backend's code reads PYDRA_<BACKEND>_SCENARIO itself"
            self._say(Paragraph(headline=headline, details=(hint,)))
        registered = await self._wait("the driver registers with the kubelet", lambda: self._report.registered)
        driver = registered.plugin.driver
        slices = await self._wait("the driver publishes its devices", lambda: self._find_slices(driver))
        self._say(describe_slices(slices))
        self._report.note_published(driver)
        sample = read_sample(options.backend, driver, declared.classes if declared is not None else {})
        self._apply(choose_manifests(options.manifests, sample))
        await self._wait(f"{', '.join(self._pods)} runs", self._is_running)
        for pod in [one for one in self._pods if one not in self._report.ran]:
            self._say(Paragraph(headline=f"pending: pod {pod}; it is started when it can be scheduled"))
        if self._explain and not options.manifests:
            self._printer.write("\n" + describe_sample(one.text for one in sample))

    def _apply(self, manifests: Sequence[Manifest]) -> None:
        pods = []
        self._operations.manifests = manifests
        for manifest in manifests:
            created = create_object(self._api, manifest)
            self._say(Paragraph(headline=f"applied: {created['kind']} {created['metadata']['name']}"))
            if created["kind"] == PODS.kind:
                pods.append(full_name(created))
        self._pods = tuple(pods)

    async def _show_end(self) -> None:
        if self._containers is not None:
            await self._containers.wait_ended(seconds=self._options.deadline, endless_seconds=ENDLESS_SECONDS)
            self._refuse_hopeless()
        if self._report.is_bare:
            with anyio.move_on_after(SETTLED):
                await self._report.network.wait()
        self._pod_deletion.delete_pods()
        await self._wait("the pods end", lambda: not any(map(self._find_pod, self._pods)))
        await self._wait("the CDI specs are removed", lambda: not os.listdir(self._node.cdi_directory))
        await self._wait("the claims are released", lambda: not self._report.list_allocated())
        self._say(Paragraph(headline="clean: no CDI spec and no allocated claim is left"))
        self._may_end = True
        if status := await self._agent.stop():
            raise RunError(f"the agent ended with status {status} when it was stopped")
        self._say(Paragraph(headline="stopped: pydra-agent", details=(self._describe_check(),)))

    def _describe_check(self) -> str:
        tries = "two devices in one claim, several claims at once, crashes and cancelled calls"
        return f"pydra check {self._options.backend} tries what one pod does not: {tries}"

    async def _stay(self) -> None:
        """Until cancelled; an agent that ends is started again, as a DaemonSet does it."""
        node, agent = self._node, self._agent
        settings = node.write_settings(self._options.backend, agent.http_address, self._options.config)
        hints = describe_hints(
            node.root,
            backend=self._options.backend,
            kubeconfig=str(node.server.kubeconfig),
            settings=str(settings),
            http_address=agent.http_address,
            pid=agent.pid,
            pods=self._pods,
            claims=[one["metadata"] for one in self._api.list(RESOURCE_CLAIMS).items],
        )
        if self._explain:
            self._printer.write(hints)
        while True:
            begun = time.monotonic()
            status = await agent.wait()
            if time.monotonic() - begun < QUICK_DEATH and status > 0:
                raise RunError(f"the agent ended with status {status}")
            await agent.start()
            how = f"by signal {-status}" if status < 0 else f"with status {status}"
            self._say(Paragraph(headline=f"ended: pydra-agent, {how}; it is started again (pid {agent.pid})"))

    def _on_step(self, step: Step) -> None:
        if (shown := self._page.operations) is not None:
            shown.follow(step)
            self._page.changed.notify()
        if isinstance(step, ContainerCreated) and self._containers is not None:
            self._containers.start(step, ends=ends_by_itself(step))
        if isinstance(step, Called):
            self._pod_deletion.follow(step)
        self._report.follow(step)

    def _find_slices(self, driver: str) -> tuple[JsonObject, ...] | None:
        """The driver's slices once its pool is complete and has devices; raises RunError when it stays empty."""
        found = self._api.list(RESOURCE_SLICES, Query(field_selector=f"spec.driver={driver}")).items
        if published := list_published(found):
            return found
        if published is None:
            return None
        self._empty_since = self._empty_since or time.monotonic()
        if time.monotonic() - self._empty_since > SETTLED:
            hint = "with `--scenario NAME` the backend simulates a machine that has some"
            details = (hint,) if self._can_simulate else ()
            raise RunError("discover has found no device that can be published", details, explained=True)
        return None

    def _is_running(self) -> bool:
        """Whether all pods run; a node that stays up does not wait for those that cannot be scheduled."""
        waived = () if self._options.once else self._find_unschedulable()
        return self._report.ran.issuperset(pod for pod in self._pods if pod not in waived)

    def _find_pod(self, pod: str) -> JsonObject | None:
        namespace, _, name = pod.partition("/")
        return self._api.find(PODS, name, namespace=namespace)

    async def _wait(self, what: str, look: Callable[[], FoundT | None]) -> FoundT:
        deadline = self._options.deadline
        return await wait_until(what, look, say=self._say, deadline=deadline, refuse=self._refuse_hopeless)

    def _refuse_hopeless(self) -> None:
        """Raise RunError when what is waited for will not happen."""
        if self._agent.returncode is not None and not self._may_end:
            raise RunError(f"the agent ended with status {self._agent.returncode}")
        if self._report.fatal:
            raise RunError(f"the backend cannot be used ({self._report.fatal})", explained=True)
        if self._containers is not None and self._containers.failed:
            raise RunError(f"container {self._containers.failed}", explained=True)
        for pod, count in self._report.failures.items():
            if pod in self._pods and count >= POD_ATTEMPTS:
                raise RunError(f"pod {pod} has failed {count} times", explained=True)
        for name in self._pods:
            if name not in self._report.ran and self._find_pod(name) is None:
                raise RunError(f"pod {name} was deleted before it ran", explained=True)
        if self._options.once:
            for name, why in self._find_unschedulable().items():
                raise RunError(f"pod {name} cannot be scheduled: {why}", explained=True)

    def _find_unschedulable(self) -> dict[str, str]:
        """The pods that will not be scheduled before something changes, and why."""
        found: dict[str, str] = {}
        for name in self._pods:
            pod = self._find_pod(name)
            conditions = pod["status"].get("conditions") or () if pod is not None and not is_finished(pod) else ()
            told = next((one for one in conditions if one["type"] == "PodScheduled" and one["status"] == "False"), None)
            if told is None:
                self._unscheduled.pop(name, None)
            elif time.monotonic() - self._unscheduled.setdefault(name, time.monotonic()) > SETTLED:
                found[name] = told.get("message", "")
        return found
