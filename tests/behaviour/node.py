"""A node: directories, an API server in a thread of this process, boards, and the real agent as a process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from anyio.from_thread import BlockingPortal, start_blocking_portal

from pydra_dev.apiserver.faults import Fault
from pydra_dev.apiserver.request_log import Call
from pydra_dev.apiserver.server import ApiServer, serve_api
from pydra_dev.node import free_port
from tests.behaviour.api import Api
from tests.behaviour.kubelet import Claim, Device, Kubelet
from tests.behaviour.relay import serve_relay
from tests.behaviour.waiting import DEADLINE, wait_for
from tests.forked import ForkedAgent

HERE = Path(__file__).parent
NODE = "node-1"
DRIVER = "board.example.com"
DEVICES = (*(f"d{number}" for number in range(48)), *(f"shared{number}" for number in range(4)))


class Board:
    """The hardware, of which the test backend's docstring says more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for name in ("held", "orders", "reached", "processes"):
            (path / name).mkdir(parents=True)
        self._next = 0
        self.restore_devices()

    def restore_devices(self) -> None:
        """The devices of a new board, all healthy."""
        self.set_devices(*DEVICES)

    def set_devices(self, *healthy: str, **unhealthy: str) -> None:
        """The devices that are there: names of healthy ones, and of others with what is wrong with them."""
        fresh = self.path / "devices.json.new"
        fresh.write_text(json.dumps({**dict.fromkeys(healthy, ""), **unhealthy}))
        fresh.rename(self.path / "devices.json")

    def set_address(self, claim: Claim, address: str) -> None:
        """The address that the claim's devices have from now on."""
        (self.path / "addresses.json").write_text(json.dumps({claim.uid: address}))
        devices = json.loads((self.path / "devices.json").read_bytes())
        self.set_devices(**devices)  # which the backend notices

    def is_clean_of(self, claim: Claim) -> bool:
        """Whether no device is configured for the claim."""
        return not any(claim.uid in self.holders(device) for device in os.listdir(self.path / "held"))

    def device(self) -> str:
        """A device that no test has used yet."""
        self._next += 1
        return f"d{self._next - 1}"

    def holders(self, device: str) -> set[str]:
        """The uids of the claims that the device is configured for."""
        place = self.path / "held" / device
        return set(os.listdir(place)) if place.exists() else set()

    def history(self, claim: Claim) -> list[dict[str, Any]]:
        """What the backend did for a claim, step by step."""
        with suppress(FileNotFoundError):
            lines = [json.loads(line) for line in (self.path / "history").read_text().splitlines()]
            return [line for line in lines if line["uid"] == claim.uid]
        return []

    def steps(self, claim: Claim) -> list[str]:
        """The names of those steps: prepare, prepared, unprepare, unprepared."""
        return [line["step"] for line in self.history(claim)]

    def discovered(self) -> int:
        """How often the backend was asked for its devices."""
        with suppress(FileNotFoundError):
            return (self.path / "discovered").stat().st_size
        return 0

    def wait_discovered(self, count: int) -> None:
        """Return when the backend was asked for its devices so often from now on."""
        before = self.discovered()
        wait_for(lambda: self.discovered() >= before + count, f"discover is called {count} times")

    def order(self, call: str, claim: str, what: str, *, at: str = "begin", times: int | None = None) -> None:
        """What goes wrong in calls for the claim of this name: each time, or this often."""
        (self.path / "orders" / f"{call}.{claim}.{at}").write_text(f"{what} {times}" if times else what)

    def wait_reached(self, call: str, claim: str, *, at: str = "begin") -> None:
        """Return when a call has come to this order."""
        wait_for((self.path / "reached" / f"{call}.{claim}.{at}").exists, f"{call} of {claim} comes to {at}")

    def dismiss(self, call: str, claim: str, *, at: str = "begin") -> None:
        """Let calls go on, now and from now on."""
        (self.path / "orders" / f"{call}.{claim}.{at}").unlink(missing_ok=True)
        (self.path / "reached" / f"{call}.{claim}.{at}").unlink(missing_ok=True)

    def end_processes(self) -> None:
        """Kill backends that outlived their agent."""
        for name in os.listdir(self.path / "processes"):
            with suppress(OSError):
                if f"BOARD_DIRECTORY={self.path}\0".encode() in Path("/proc", name, "environ").read_bytes():
                    os.kill(int(name), signal.SIGKILL)


class Agent:
    """An agent that was started."""

    def __init__(self, process: subprocess.Popen[bytes] | ForkedAgent, log: Path, host: str, port: int) -> None:
        self.process = process
        self.log = log
        self.host = host
        self.port = port

    def lines(self) -> list[dict[str, Any]]:
        """What it logged; each line is JSON."""
        text = self.log.read_text(errors="replace")
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def messages(self) -> str:
        """The messages that it logged, one to a line."""
        return "\n".join(str(line["message"]) for line in self.lines())

    def wait_log(self, text: str) -> None:
        """Return when it has logged this."""
        wait_for(lambda: text in self.messages(), f"the agent logs {text!r}")

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of a GET on its HTTP endpoint; (0, "") while nothing listens."""
        connection = HTTPConnection(self.host, self.port, timeout=10)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        except (OSError, HTTPException):
            return 0, ""
        finally:
            connection.close()

    def wait_ready(self) -> None:
        """Return when /readyz is content."""
        wait_for(lambda: self.get("/readyz")[0] == 200, "the agent is ready")

    def metric(self, series: str) -> float:
        """The value of a series of /metrics; 0 when there is none."""
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith(f"{series} "):
                return float(line.rpartition(" ")[2])
        return 0.0

    def has_ended(self) -> bool:
        """Whether the process is gone."""
        if isinstance(self.process, subprocess.Popen):
            self.process.poll()
        return self.process.returncode is not None

    def wait_end(self) -> int:
        """Return its exit code once it has ended."""
        if isinstance(self.process, subprocess.Popen):
            return self.process.wait(timeout=DEADLINE)
        return self.process.join(DEADLINE)

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        self.process.terminate()
        return self.wait_end()

    def kill(self) -> None:
        """SIGKILL: it has no chance to clean up."""
        self.process.kill()
        self.wait_end()


class Node:
    """A node on which agents are started. `server` is the API server, `api` a client of it.

    An agent is forked from a process that has imported it, or a new interpreter if its clocks are to be set, which its
    modules would have imported before: `has_clocks`.
    """

    def __init__(
        self, root: Path, server: ApiServer, portal: BlockingPortal, stack: ExitStack, *, has_clocks: bool = False
    ) -> None:
        self._has_clocks = has_clocks
        self.root = root
        self.server = server
        self.api = Api(server.url, NODE)
        self.board = Board(root / "board")
        self.cdi = root / "cdi"
        self.plugins = root / "kubelet" / "plugins"
        self.kubelet = Kubelet(root / "kubelet" / "plugins_registry")
        for path in (self.cdi, self.plugins, self.kubelet.registry, root / "run"):
            path.mkdir(parents=True, exist_ok=True)
        (root / "boot_id").write_text("8a9b1d0e-0000-4000-8000-000000000001\n")
        self._ahead = 0.0, 0.0
        if has_clocks:
            self._set_clocks(*self._ahead)
        stack.callback(self.kubelet.close)
        stack.callback(self.board.end_processes)
        self._portal = portal
        self._stack = stack
        self._agents = 0

    def start(
        self, *flags: str, backend: str = "board:", kubeconfig: str = "", forked: bool = True, **environ: str
    ) -> Agent:
        """Start an agent; killed at the end."""
        self._agents += 1
        log, port = self.root / f"agent-{self._agents}.log", free_port()
        host = urlsplit(self.server.url).hostname or ""
        endpoint = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        arguments = [
            *("--backend", backend, "--node-name", NODE),
            *("--kubeconfig", kubeconfig or str(self.server.kubeconfig)),
            *("--kubelet-root", str(self.root / "kubelet"), "--cdi-dir", str(self.cdi)),
            *("--http-address", endpoint, "--log-format", "json", *flags),
        ]
        clean = {name: text for name, text in os.environ.items() if not name.startswith(("PYDRA_", "KUBE"))}
        environment = {
            **clean,
            "PYTHONPATH": os.pathsep.join([str(HERE / "backends"), str(HERE / "clock")]),
            "BOARD_DIRECTORY": str(self.board.path),
            "CLOCK_FILE": str(self.root / "clock"),
            "PYDRA_BOOT_ID_FILE": str(self.root / "boot_id"),
            "PYDRA_RECORDS_DIR": str(self.root / "run"),
            **environ,
        }
        process: subprocess.Popen[bytes] | ForkedAgent
        with log.open("wb") as output:
            if forked and not self._has_clocks:
                process = ForkedAgent(arguments, environment, output.name)
            else:
                command = [sys.executable, "-m", "pydra.cli.agent", *arguments]
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
                )
        agent = Agent(process, log, host, port)
        self._stack.callback(self._end, agent)
        return agent

    def serve(self, *flags: str, forked: bool = True, **environ: str) -> Agent:
        """Start an agent, and register it with the kubelet."""
        agent = self.start(*flags, forked=forked, **environ)
        self.register(agent)
        return agent

    def register(self, agent: Agent) -> None:
        """Register the agent's driver with the kubelet, over new connections."""
        self.kubelet.close()
        try:
            self.kubelet.register()
            agent.wait_ready()
        except AssertionError as error:
            raise AssertionError(f"{error}; the agent said:\n{agent.log.read_text()[-4000:]}") from error

    def restart(self, agent: Agent, *flags: str) -> Agent:
        """Kill the agent and start the next."""
        agent.kill()
        return self.serve(*flags)

    def reboot(self, agent: Agent) -> Agent:
        """Cut the power and boot again: what lies on a tmpfs is gone, and the hardware has forgotten all."""
        agent.kill()
        self.board.end_processes()
        for path in (self.cdi, self.root / "run", self.board.path / "held"):
            shutil.rmtree(path)
            path.mkdir()
        (self.root / "boot_id").write_text("8a9b1d0e-0000-4000-8000-000000000002\n")
        return self.serve()

    def write_kubelet_state(self, *claims: Claim) -> None:
        """The kubelet's own record of the claims that its pods use, in the format of Kubernetes 1.34."""
        entries = [
            {
                "ClaimUID": claim.uid,
                "ClaimName": claim.name,
                "Namespace": claim.namespace,
                "PodUIDs": {"00000000-0000-4000-8000-00000000000a": {}},
                "DriverState": {DRIVER: {"Devices": []}},
            }
            for claim in claims
        ]
        data = json.dumps(
            {
                "kind": "DRACheckpoint",
                "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1",
                "ClaimInfoStateList": entries,
            }
        )
        fresh = self.root / "kubelet" / "dra_manager_state.new"
        fresh.write_text(json.dumps({"Data": data, "Checksum": zlib.crc32(data.encode())}))
        fresh.rename(self.root / "kubelet" / "dra_manager_state")

    def advance_clock(self, seconds: float) -> None:
        """Set the agent's monotonic clock forward."""
        self._set_clocks(self._ahead[0] + seconds, self._ahead[1])

    def set_time_of_day(self, ahead: float) -> None:
        """Have the agent's time of day be so many seconds ahead of what it is."""
        self._set_clocks(self._ahead[0], ahead)

    def _set_clocks(self, *ahead: float) -> None:
        assert self._has_clocks, "this node's agents have the clocks of the machine"
        self._ahead = ahead[0], ahead[1]
        fresh = self.root / "clock.new"
        fresh.write_text("{} {}".format(*ahead))
        fresh.rename(self.root / "clock")

    def cdi_files(self, claim: Claim) -> list[Path]:
        """The CDI files that belong to the claim."""
        return [path for path in self.cdi.iterdir() if claim.uid in path.name]

    def cdi_edits(self, device: Device) -> list[dict[str, Any]]:
        """What a container runtime makes of a device's CDI ids: the container edits of spec and device."""
        specs = [json.loads(path.read_bytes()) for path in self.cdi.iterdir() if path.suffix == ".json"]
        found: list[dict[str, Any]] = []
        for cdi_id in device.cdi_ids:
            kind, _, name = cdi_id.partition("=")
            (match,) = ((s, d) for s in specs if s["kind"] == kind for d in s["devices"] if d["name"] == name)
            found += [match[0].get("containerEdits") or {}, match[1].get("containerEdits") or {}]
        return found

    def files_about(self, claim: Claim) -> list[Path]:
        """All files of the agent in which the claim's uid stands, but CDI files: whatever records it keeps."""
        places = (self.plugins, self.root / "run")
        files = (path for place in places for path in sorted(place.rglob("*")) if path.is_file())
        return [path for path in files if claim.uid.encode() in path.read_bytes()]

    def is_clean(self, claim: Claim) -> bool:
        """Whether nothing is left of the claim: no record, CDI file or configured device."""
        return self.board.is_clean_of(claim) and not self.cdi_files(claim) and not self.files_about(claim)

    @contextmanager
    def api_silent(self) -> Iterator[None]:
        """Inside the block the API server takes requests and answers none."""
        self._portal.call(self.server.faults.freeze)
        try:
            yield
        finally:
            self._portal.call(self.server.faults.thaw)

    def start_relay(self, asked: bytearray | None = None) -> str:
        """The kubeconfig of a relay to the API server: it puts unreadable bytes into answers, and notes requests."""
        asked = bytearray() if asked is None else asked
        port = self.server.url.rpartition(":")[2]
        relay = self._stack.enter_context(self._portal.wrap_async_context_manager(serve_relay(int(port), asked)))
        kubeconfig = self.root / "kubeconfig-relay"
        kubeconfig.write_text(self.server.kubeconfig.read_text().replace(f":{port}", f":{relay}"))
        return str(kubeconfig)

    @contextmanager
    def api_down(self) -> Iterator[None]:
        """Inside the block nothing listens where the API server was."""
        with self._portal.wrap_async_context_manager(self.server.down()):
            yield

    def agent_calls(self, verb: str = "", resource: str = "") -> list[Call]:
        """The requests that agents have made."""
        return [one for one in self.server.requests.select(verb, resource) if one.user_agent.startswith("pydra-agent")]

    def wait_lookups_of(self, claim: Claim, count: int, *, unless: Callable[[], object] = lambda: False) -> None:
        """Return when an agent has asked the API server for this claim so often from now on, or `unless` holds."""

        def lookups() -> int:
            return sum(one.name == claim.name for one in self.agent_calls("get", "resourceclaims"))

        before = lookups()
        wait_for(lambda: unless() or lookups() >= before + count, f"the agent looks {claim.name} up {count} times")

    def api_fault(self, **fields: Any) -> None:
        """Trouble in the API server, in the fields of pydra_dev.apiserver.faults.Fault."""
        self.server.faults.add(Fault(**fields))

    def _end(self, agent: Agent) -> None:
        if not agent.has_ended():
            agent.kill()


@contextmanager
def run_node(*, has_clocks: bool = False, **options: Any) -> Iterator[Node]:
    """A node that lives as long as the block; `options` are those of pydra_dev's `serve_api`."""
    with ExitStack() as stack:
        # Not pytest's own directory: paths of sockets end at 107 bytes.
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pydra-")))
        portal = stack.enter_context(start_blocking_portal())
        server = stack.enter_context(
            portal.wrap_async_context_manager(serve_api(kubeconfig=root / "kubeconfig", **options))
        )
        node = Node(root, server, portal, stack, has_clocks=has_clocks)
        node.api.create_node()
        yield node
