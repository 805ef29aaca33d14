"""The daemon's loops: keep /etc/hosts and nvidia-imex as the clique says, and report whether it is ready.

It writes nothing but its own directory, its own /etc/hosts and one condition of its own pod. A kill at any point costs
a restart of the container: all files are written again before nvidia-imex is started.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import anyio
import msgspec

from pydra.controllers import PODS, Informer, KubeClient, KubeError, Resource
from pydra_nvidia.atomic_files import overwrite_file, replace_file
from pydra_nvidia.compute_domain.daemon.configuration import (
    KEY_FILES,
    SPACING,
    Loaded,
    Peers,
    find_own,
    merge_hosts,
    parse_peers,
    plan_reload,
    render_configuration,
    render_nodes,
)
from pydra_nvidia.compute_domain.daemon.metrics import DaemonMetrics
from pydra_nvidia.compute_domain.daemon.process import DOMAIN_SECONDS, QUERY_SECONDS, ImexProcess, ask
from pydra_nvidia.compute_domain.daemon.readiness import find_problems, judge
from pydra_nvidia.compute_domain.daemon.settings import DaemonSettings
from pydra_nvidia.compute_domain.imex_directories import DOMAIN_FILE
from pydra_nvidia.compute_domain.names import GROUP, IMEX_CONDITION, VERSION, clique_name

log = logging.getLogger(__name__)

CLIQUES = Resource(
    group=GROUP, version=VERSION, plural="computedomaincliques", kind="ComputeDomainClique", namespaced=True
)
NOT_READY_PERIOD, READY_PERIOD, DOMAIN_PERIOD = 1.0, 5.0, 30.0
"""Seconds between two questions: until it is ready, afterwards, and about the whole domain."""
KEYS_PERIOD = 5.0
"""Seconds between two looks at the files of TLS."""
RESTART_PAUSE, RESTART_LIMIT, STABLE_SECONDS = 1.0, 30.0, 60.0
REPORT_RETRY = 5.0
IS_READY = True, "nvidia-imex is ready"
MANAGER = "pydra-compute-domain-daemon"
"""Of the one field that it writes: a patch would replace the conditions of the kubelet, too."""


class Daemon:
    """The daemon of one node in one domain."""

    def __init__(self, client: KubeClient, settings: DaemonSettings, metrics: DaemonMetrics) -> None:
        self._client = client
        self._settings = settings
        self._metrics = metrics
        self._directory = Path(settings.directory)
        self._peers: Mapping[int, tuple[str, str]] = {}
        self._own: int | None = None
        self._changed = anyio.Event()
        self._waits_for = "" if not settings.clique else "the clique has no entry for this node yet"
        self._problems = ""
        self._reported = IS_READY
        self._not_ready_since = time.monotonic()
        self._news = anyio.Event()

    def missing(self) -> Sequence[str]:
        """What the node waits for, as a line; empty if it is ready."""
        return [self._waits_for] if self._waits_for else []

    async def run(self) -> None:
        """Run until cancelled; nvidia-imex is ended with it. Raises SettingsError, OSError."""
        self._write_domain()
        self._metrics.ready.set(int(not self._waits_for))
        if not self._settings.clique:
            log.info("the node is outside all cliques: no nvidia-imex is needed")
            await self._report()
            return
        self._write_configuration()
        name = clique_name(self._settings.domain, self._settings.clique)
        own, selector = self._settings.namespace, f"metadata.name={name}"
        informer = Informer(self._client, CLIQUES, namespace=own, field_selector=selector, lists=False)
        informer.subscribe(lambda _: self._take(informer, name))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(informer.run, name="clique")
            tasks.start_soon(self._run_imex, name="nvidia-imex")
            tasks.start_soon(self._run_queries, name="readiness")
            tasks.start_soon(self._run_reports, name="condition")

    # Files

    def _write_domain(self) -> None:
        domain = {"name": self._settings.domain_name, "namespace": self._settings.domain_namespace}
        replace_file(self._directory / DOMAIN_FILE, json.dumps(domain).encode() + b"\n")

    def _write_configuration(self) -> None:
        nodes = self._directory / "nodes.cfg"
        replace_file(nodes, render_nodes(self._settings.max_nodes).encode())
        text = render_configuration(
            (self._directory / "imexd.cfg.tmpl").read_text(),
            address=self._settings.address,
            nodes_file=str(nodes),
            tls_directory=self._settings.tls_directory,
        )
        replace_file(self._directory / "imexd.cfg", text.encode())

    def _write_hosts(self) -> str:
        """Why they cannot be written; empty if they are. In place: the kubelet has mounted the file."""
        path = Path(self._settings.hosts_file)
        try:
            old = path.read_text()
            new = merge_hosts(old, self._peers)
            if new != old:
                overwrite_file(path, new.encode())
        except OSError as error:
            return f"{path} cannot be written, by which nvidia-imex finds its peers: {error.strerror}"
        return ""

    # The clique

    def _take(self, informer: Informer, name: str) -> None:
        clique = informer.objects.get((self._settings.namespace, name))
        if clique is None and self._own is not None:
            log.warning("the clique is gone: its nodes count as they were until it is made again")
            return
        peers = parse_peers(clique)
        if peers == self._peers:
            return
        self._peers = peers
        own = find_own(peers, node=self._settings.node, address=self._settings.address)
        if own is not None:  # an entry that vanishes for a moment does not end a running IMEX
            self._own = own
        log.info("nodes of the clique: %d, this one is %s", len(peers), "not one of them" if own is None else own)
        self._changed.set()

    def _known(self) -> Peers:
        return tuple((index, address) for index, (_, address) in self._peers.items())

    # nvidia-imex

    async def _run_imex(self) -> None:
        pause = RESTART_PAUSE
        while self._own is None:
            self._changed = anyio.Event()
            await self._changed.wait()
        while True:
            began = time.monotonic()
            await self._run_once()
            pause = RESTART_PAUSE if time.monotonic() - began > STABLE_SECONDS else min(pause * 2, RESTART_LIMIT)
            await anyio.sleep(pause * self._settings.scale)

    async def _run_once(self) -> None:
        """One process, from start to end."""
        own, known, keys = self._own, self._known(), self._read_keys()
        if problem := self._write_hosts():
            self._say(problem)
            return
        try:
            imex = await ImexProcess.start(self._settings.program, str(self._directory / "imexd.cfg"))
        except OSError as error:
            self._say(f"{self._settings.program} cannot be started: {error.strerror}; the driver's package nvidia-imex")
            return
        self._metrics.starts.inc()
        log.info("nvidia-imex is started as node %s", own)
        try:
            async with anyio.create_task_group() as tasks:
                loaded = Loaded(peers=known, keys=keys, at=time.monotonic())
                tasks.start_soon(self._keep_current, imex, own, loaded)
                how = await imex.wait()
                tasks.cancel_scope.cancel()
            log.warning("%s; it is started again", how)
            self._say(how)
        finally:
            await imex.stop()

    async def _keep_current(self, imex: ImexProcess, own: int | None, loaded: Loaded) -> None:
        """Let a running IMEX know its peers, and end one whose own number has changed."""
        said = ""
        while True:
            self._changed = anyio.Event()
            if self._own != own:
                log.warning("this node is %s now and no longer %s: nvidia-imex is restarted", self._own, own)
                await imex.end()
                return
            keys = self._read_keys()
            spacing = SPACING * self._settings.scale
            due = plan_reload(loaded, self._known(), time.monotonic(), keys, spacing=spacing)
            if due == 0 and (problem := self._write_hosts()):
                if problem != said:
                    log.warning("%s; tried again every %g s", problem, spacing)
                said = problem
                loaded = msgspec.structs.replace(loaded, at=time.monotonic())
                continue
            if due == 0:
                loaded = Loaded(peers=self._known(), keys=keys, at=time.monotonic())
                said = ""
                imex.reload()
                self._metrics.reloads.inc()
                continue
            with anyio.move_on_after(KEYS_PERIOD * self._settings.scale if due is None and keys else due):
                await self._changed.wait()

    def _read_keys(self) -> tuple[str, ...]:
        """Digests of the files of TLS: the kubelet replaces them when the Secret changes. Empty without TLS."""
        directory, found = Path(self._settings.tls_directory), list[str]()
        for name in KEY_FILES if self._settings.tls_directory else ():
            try:
                found.append(hashlib.sha256((directory / name).read_bytes()).hexdigest())
            except OSError:  # nvidia-imex says what it misses
                found.append("")
        return tuple(found)

    # Readiness

    async def _run_queries(self) -> None:
        next_look = 0.0
        while True:
            if self._own is not None:
                self._say(await self._ask_ready())
                if not self._waits_for and len(self._peers) > 1 and time.monotonic() >= next_look:
                    self._note_problems(await self._ask_domain())
                    next_look = time.monotonic() + DOMAIN_PERIOD * self._settings.scale
            await anyio.sleep((NOT_READY_PERIOD if self._waits_for else READY_PERIOD) * self._settings.scale)

    async def _ask_ready(self) -> str:
        """What nvidia-imex waits for; empty if it is ready."""
        configuration = str(self._directory / "imexd.cfg")
        try:
            said = await ask(self._settings.control, "-c", configuration, "-q", seconds=QUERY_SECONDS)
        except TimeoutError:
            return f"nvidia-imex-ctl has not answered within {QUERY_SECONDS:g} s"
        except OSError as error:
            return f"{self._settings.control} cannot be started: {error.strerror}"
        return judge(said)

    async def _ask_domain(self) -> str:
        configuration, own = str(self._directory / "imexd.cfg"), self._own
        try:
            said = await ask(self._settings.control, "-c", configuration, "-N", "-j", seconds=DOMAIN_SECONDS)
        except TimeoutError:
            return f"the nodes of the domain do not all answer within {DOMAIN_SECONDS:g} s: check TCP port 50005"
        except OSError:
            return ""
        known = {index: node for index, (node, _) in self._peers.items()}
        return find_problems(said, known, -1 if own is None else own)

    def _say(self, waits_for: str) -> None:
        if waits_for != self._waits_for:
            log.log(logging.WARNING if waits_for else logging.INFO, "%s", waits_for or "nvidia-imex is ready")
            if not self._waits_for:
                self._not_ready_since = time.monotonic()
            self._waits_for = waits_for
            self._metrics.ready.set(int(not waits_for))
            self._news.set()

    def _note_problems(self, problems: str) -> None:
        if problems != self._problems:
            log.warning("the domain: %s", problems or "all nodes are connected")
            self._problems = problems
            self._news.set()

    async def _run_reports(self) -> None:
        """Report trouble that lasts, and its end: of a start that goes well hundreds of nodes write nothing."""
        while True:
            self._news = anyio.Event()
            early = self._settings.report_seconds - (time.monotonic() - self._not_ready_since)
            if self._waits_for and early > 0:
                pause: float | None = early
            else:
                pause = None if await self._report() else REPORT_RETRY
            with anyio.move_on_after(pause):
                await self._news.wait()

    async def _report(self) -> bool:
        """Write the condition of the own pod, if it is another one than before; whether it is written."""
        ready, text = not self._waits_for, self._waits_for or self._problems or IS_READY[1]
        if not self._settings.clique:
            text = "the node is outside all cliques, and needs no nvidia-imex"
        if self._reported == (ready, text):
            return True
        reason = "NotReady" if not ready else "DomainDegraded" if self._problems else "Ready"
        condition = {
            "type": IMEX_CONDITION,
            "status": "True" if ready else "False",
            "reason": reason,
            "message": text[:1024],
            "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        try:
            await self._client.apply(
                PODS,
                self._settings.pod,
                {"apiVersion": "v1", "kind": "Pod", "status": {"conditions": [condition]}},
                manager=MANAGER,
                namespace=self._settings.namespace,
                subresource="status",
            )
        except KubeError as error:
            log.warning("the pod's condition cannot be written: %s", error)
            return False
        self._reported = ready, text
        return True
