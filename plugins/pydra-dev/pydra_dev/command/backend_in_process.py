"""`pydra dev --in-process`: the backend's coroutines in this process, so that `breakpoint()` and debuggers work.

The same manifests, scheduler, CDI specs and containers as on the embedded node, but no agent and no kubelet: nothing
has a deadline, and an exception of the backend ends the run with its traceback.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from msgspec.structs import replace

from pydra.backends.backend_settings import read_settings
from pydra.backends.child.claim_values import BackendTypes
from pydra.backends.claim_config import ConfigCheck, decode_claim, find_check
from pydra.backends.contract_validation import (
    find_answer_type_violations,
    find_coroutine_violations,
    find_manager_violations,
    find_object_violations,
    find_prepared_violations,
)
from pydra.backends.discovery import LoadError, find_backend, is_target, load_object, locate_file, variable_prefix
from pydra.backends.wire import Method
from pydra.cdi.spec import ClaimSpec, build_spec
from pydra.claim import Claim, ClaimRef, HeldClaim, Plan, PreparedDevice
from pydra.claims.allocation import base_request, parse_allocation
from pydra.devices import Inventory
from pydra.errors import BackendError, ContractError, PydraError, SettingsError
from pydra.inventory.build_pool import build_pool
from pydra.inventory.health_debounce import HealthPolicy, Snapshot, observe
from pydra.slices.build import build_wanted
from pydra.testing.claims_in_memory import CallsInProcess, ClaimsInMemory
from pydra_dev.api.errors import JsonObject
from pydra_dev.api.kinds import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from pydra_dev.api.pod_fields import claim_names
from pydra_dev.apiserver.verbs import Api
from pydra_dev.command.options import Options
from pydra_dev.command.signals import INTERRUPTED, run_with_signals
from pydra_dev.command.single_node import SETTLED
from pydra_dev.command.wait_for_step import RunError, describe_failure
from pydra_dev.container_runtime.cdi_injection import InjectionError
from pydra_dev.control_plane import serve_control_plane
from pydra_dev.kubelet.kubelet import build_node
from pydra_dev.kubelet.pod_claims import container_requests, list_containers
from pydra_dev.kubelet.pod_workers import create_container
from pydra_dev.kubelet.settings import KubeletSettings
from pydra_dev.manifests import choose_manifests, create_object, read_sample
from pydra_dev.node import make_root, scenario_environment
from pydra_dev.output.descriptions import (
    Paragraph,
    describe_allocation,
    describe_cdi_spec,
    describe_changes,
    describe_others,
    describe_slices,
)
from pydra_dev.output.terminal import Output, Printer
from pydra_dev.scheduler.allocator import AllocationError
from pydra_dev.scheduler.scheduler import review_claim

NODE = "embedded-node"
POLICY = HealthPolicy(effect=None, unhealthy_after=0, healthy_after=0, stale_effect=None, stale_after=0)


def run(options: Options, config: Mapping[str, Any]) -> int:
    """Prepare and unprepare the claims of the manifests or of the sample, on standard output; the exit code.

    `config` is the content of the agent's settings file. Raises SettingsError and BackendError for a backend that
    cannot be used.
    """
    # A shell lets what it starts in the background ignore Ctrl-C, and asyncio only handles what is not ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    output = Output()
    printer = Printer(output.write, time.monotonic, quiet=options.quiet)
    code = anyio.run(_run_until_signal, options, config, printer)
    if output.closed:
        raise BrokenPipeError
    return code


async def _run_until_signal(options: Options, config: Mapping[str, Any], printer: Printer) -> int:
    """Run until the end, or until the signals that would end the process before the backend could undo its work.

    Ctrl-C cancels this task, as `asyncio.run` does it, and is left to debuggers.
    """
    scope = anyio.CancelScope()

    async def run_until_cancelled() -> int:
        with scope:
            return await _run(options, config, printer)
        return INTERRUPTED

    return await run_with_signals(run_until_cancelled, lambda _number: scope.cancel(), signal.SIGTERM, signal.SIGHUP)


async def _run(options: Options, config: Mapping[str, Any], printer: Printer) -> int:
    target, directory = locate_file(options.backend)
    source = find_backend(target)
    if is_target(target):
        sys.path.insert(0, directory or os.getcwd())
    with make_root() as root:
        os.environ.update(scenario_environment(options.backend, options.scenario, root))
        backend = _load(source.target, source.name)
        settings = config.get("backendSettings", {}).get(source.configured_name, {})
        check, arguments = _read_settings(backend, source.name, settings)
        failure: PydraError | RunError | None = None
        async with serve_control_plane(kubeconfig=Path(root, "kubeconfig")) as server:
            try:
                async with _connect(backend, arguments) as live:
                    calls = _Calls(backend, live, check, printer.say)
                    session = Session(options, server.api, f"{root}/cdi", calls)
                    await session.run()
            except (PydraError, RunError) as error:
                failure = error
        if isinstance(failure, RunError):
            printer.say(describe_failure(failure))
            return 1
        if failure is not None:
            raise failure
    return 0


def _load(target: str, name: str) -> Any:
    try:
        backend = load_object(target)
    except LoadError as error:
        raise BackendError(name, str(error), details=error.fault.traceback) from error
    if violations := find_object_violations(backend):
        raise ContractError(name, violations)
    if not getattr(backend, "DRIVER", ""):
        raise SettingsError([f"backend {name} names no driver: set DRIVER"])
    return backend


def _read_settings(backend: Any, name: str, settings: Mapping[str, Any]) -> tuple[ConfigCheck | None, tuple[Any, ...]]:
    """The backend's check of configs, and the arguments of `connect`."""
    settings_type = getattr(backend, "SETTINGS_TYPE", None)
    if settings_type is None:
        return None, ()
    found = read_settings(settings_type, name, f"{variable_prefix(name)}_", os.environ, settings)
    return find_check(backend, found), (found,)


@asynccontextmanager
async def _connect(backend: Any, arguments: tuple[Any, ...]) -> AsyncIterator[Any]:
    if getattr(backend, "connect", None) is None:
        yield backend
        return
    async with AsyncExitStack() as stack:
        try:
            manager = backend.connect(*arguments)
            if not (violations := find_manager_violations(manager)):
                live = await stack.enter_async_context(manager)
        except Exception as error:  # the call boundary, for `connect`
            raise RunError(f"connect failed: {type(error).__name__}: {error}", _format(error)) from error
        if violations := violations or find_coroutine_violations(live, backend):
            raise ContractError("connect", violations)
        yield live


class _Calls(CallsInProcess):
    """The calls of a backend that is connected; an exception becomes a RunError with its traceback."""

    def __init__(self, module: Any, live: Any, check: ConfigCheck | None, say: Callable[[Paragraph], None]) -> None:
        super().__init__(live)
        self.module = module
        self.say = say
        self.claims = ClaimsInMemory(self)
        self._check = check
        steps = getattr(module, "STEP_TYPES", ())
        self._types = BackendTypes(configs=getattr(module, "CONFIG_TYPES", {}), steps=steps)

    async def plan(self, claim: Claim, *, until: float) -> Claim:
        """Decode the configuration, and plan if the backend does."""
        claim = decode_claim(claim, self._types.configs, self._check)
        if getattr(self.backend, "plan", None) is None:
            return claim
        plan = await self.call("plan", self.backend.plan(claim, tuple(self.claims.records.values())))
        described, violations = self._types.describe_plan(plan)
        if violations:
            raise RunError("plan breaks the contract", violations)
        if isinstance(described, Plan):
            claim = replace(claim, plan=described.data, steps=tuple(described.steps))
        else:
            claim = replace(claim, plan=described)
        details = tuple(f"step {one.label}" for one in claim.steps) or (str(claim.plan),)
        self.say(Paragraph(headline=f"planned: claim {claim}", details=details))
        return claim

    async def prepare(self, claim: Claim, *, until: float) -> tuple[PreparedDevice, ...]:
        """Prepare a claim whose steps are done."""
        begun = time.monotonic()
        prepared = await super().prepare(claim, until=until)
        took = (time.monotonic() - begun) * 1000
        self.say(Paragraph(headline=f"prepared: claim {claim} in {took:.1f} ms"))
        if violations := find_prepared_violations(claim, prepared):
            raise RunError("prepare breaks the contract", violations)
        return prepared

    async def call(self, name: str, call: Coroutine[Any, Any, Any]) -> Any:
        """What the coroutine returns; raises RunError."""
        try:
            answer = await call
        except Exception as error:  # the call boundary: the backend's own errors
            raise RunError(f"{name} failed: {type(error).__name__}: {error}", _format(error)) from error
        is_typed = name in (Method.DISCOVER.value, Method.PREPARE.value)
        if is_typed and (violations := find_answer_type_violations(Method(name), answer)):
            raise RunError(f"{name} breaks the contract", violations)
        return answer


class Session:
    """One run: what the agent and the kubelet would do, one step after the other."""

    def __init__(self, options: Options, api: Api, cdi_directory: str, calls: _Calls) -> None:
        self._options = options
        self._api = api
        self._cdi_directory = cdi_directory
        self._calls = calls
        self._say = calls.say

    async def run(self) -> None:
        """Publish, apply, prepare each pod's claims, and unprepare them however that ends; raises RunError."""
        failures: list[RunError] = []
        try:
            await self._start_pods()
        except RunError as error:
            failures.append(error)
        finally:
            with anyio.CancelScope(shield=True):
                failures += [
                    failure
                    for held in reversed(tuple(self._calls.claims.records.values()))
                    if (failure := await self._undo(held))
                ]
        if failures:
            raise failures[0]

    async def _start_pods(self) -> None:
        os.makedirs(self._cdi_directory)
        self._api.create(NODES, build_node(KubeletSettings(node_name=NODE, root="", cdi_directories=()), self._api.now))
        if getattr(self._calls.backend, "restore", None) is not None:
            await self._calls.call("restore", self._calls.backend.restore(()))
        self._publish(await self._calls.call("discover", self._calls.backend.discover()))
        classes = getattr(self._calls.module, "DEVICE_CLASSES", {})
        sample = read_sample(self._options.backend, self._calls.module.DRIVER, classes)
        created = [create_object(self._api, one) for one in choose_manifests(self._options.manifests, sample)]
        for pod in created:
            if pod["kind"] == PODS.kind:
                await self._start(pod)

    async def _undo(self, held: HeldClaim) -> RunError | None:
        """Unprepare a claim; what is against it."""
        name = str(held.claim)
        try:
            await self._calls.claims.release(held.claim, held.prepared)
        except RunError as error:
            devices = ", ".join(device.device for device in held.claim.devices)
            self._say(Paragraph(headline=f"left prepared: claim {name} on {devices}", details=(str(error),)))
            return error
        self._say(Paragraph(headline=f"unprepared: claim {name}"))
        return None

    def _publish(self, inventory: Inventory) -> None:
        driver = self._calls.module.DRIVER
        snapshot = observe(Snapshot(), inventory, now=time.monotonic(), policy=POLICY)
        published = build_pool(snapshot, driver=driver, pool=NODE, policy=POLICY)
        for text in (*published.dropped, *published.problems, *published.unreadable):
            self._say(Paragraph(headline=f"left out: {text}"))
        wanted = build_wanted(published.pool, driver=driver, node=NODE)
        pool = {"name": NODE, "generation": 1, "resourceSliceCount": len(wanted.slices)}
        slices = [
            self._api.create(
                RESOURCE_SLICES,
                {
                    "metadata": {"name": f"slice-{number}"},
                    "spec": {"driver": driver, "pool": pool, "nodeName": NODE, **one},
                },
            )
            for number, one in enumerate(wanted.slices)
        ]
        self._say(describe_slices(slices))

    async def _start(self, pod: JsonObject) -> None:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        found = await self._wait_scheduled(namespace, name)
        ids: dict[str, list[tuple[str, str]]] = {}
        for entry, claim_name in claim_names(found).items():
            resource_claim = self._api.get(RESOURCE_CLAIMS, str(claim_name), namespace=namespace)
            self._say(self._describe(resource_claim))
            ref = ClaimRef(uid=resource_claim["metadata"]["uid"], namespace=namespace, name=str(claim_name))
            one_pod = getattr(self._calls.module, "ONE_POD", False)
            claim = parse_allocation(resource_claim, ref, self._calls.module.DRIVER, one_pod=one_pod).claim
            prepared = await self._calls.claims.hold(claim)
            spec = self._write_spec(claim, prepared)
            ids[entry] = [
                (base_request(one.request), cdi_id)
                for one, its_ids in zip(prepared, spec.ids, strict=True)
                for cdi_id in its_ids
            ]
        for container in list_containers(found):
            wanted = [
                cdi_id
                for entry, request in container_requests(container)
                for of_request, cdi_id in ids.get(entry, ())
                if not request or request == of_request
            ]
            try:
                before, after = create_container(found, container, wanted, [self._cdi_directory])
            except InjectionError as error:
                raise RunError(f"the runtime cannot create container {container['name']}: {error}") from error
            changes = tuple(f"+ {line}" for line in describe_changes(before, after))
            self._say(Paragraph(headline=f"container: {container['name']} of pod {namespace}/{name}", details=changes))

    async def _wait_scheduled(self, namespace: str, name: str) -> JsonObject:
        with anyio.move_on_after(SETTLED):
            while (pod := self._api.find(PODS, name, namespace=namespace)) and not pod["spec"].get("nodeName"):
                await self._api.store.written.event.wait()
        if pod is None:
            raise RunError(f"pod {namespace}/{name} was deleted before it ran")
        if not pod["spec"].get("nodeName"):
            conditions = pod["status"].get("conditions") or [{}]
            raise RunError(f"pod {namespace}/{name} cannot be scheduled: {conditions[0].get('message', '')}")
        return pod

    def _describe(self, resource_claim: JsonObject) -> Paragraph:
        told = describe_allocation(resource_claim)
        try:
            others = describe_others(review_claim(self._api, resource_claim, NODE).devices)
        except AllocationError:
            others = ()
        return replace(told, details=(*told.details, *others))

    def _write_spec(self, claim: Claim, prepared: tuple[PreparedDevice, ...]) -> ClaimSpec:
        spec = build_spec(self._calls.module.DRIVER, claim.uid, prepared)
        if spec.content is not None:
            path = f"{self._cdi_directory}/{claim.uid}.json"
            with open(path, "wb") as file:
                file.write(spec.content)
            self._say(describe_cdi_spec(path, spec.content))
        return spec


def _format(error: Exception) -> tuple[str, ...]:
    """The traceback without the frame that caught it."""
    below = error.__traceback__.tb_next if error.__traceback__ is not None else None
    return tuple("".join(traceback.format_exception(type(error), error, below)).splitlines())
