"""`pydra webhook`, `pydra policy` and `pydra schema` as processes: what they print, how they end."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
import yaml
from anyio.abc import Process

from pydra.admission.webhook import MAX_BODY, MOST_CONNECTIONS, MOST_LARGE, SMALL_BODY
from pydra_dev.node import free_port
from tests.forked import run_forked
from tests.integration.admission.certificates import Authority, SecretMount
from tests.integration.admission.serving import connect, review
from tests.unit.admission.configs import sim
from tests.unit.admission.questions import entry

DEADLINE = 60.0
AUTHORITY = Authority()
RIGHT, WRONG = entry("sim.pydra.dev", sim()), entry("sim.pydra.dev", sim(clockMHz=1))
REPOSITORY = Path(__file__).parents[3]
CROWD = 60
"""Reviews that three API servers send at once."""


def environment(extra: Mapping[str, str] = {}) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYDRA_")} | dict(extra)


class Running:
    """A webhook's process."""

    def __init__(self, process: Process, log: Path, address: str) -> None:
        self.process = process
        self.url = f"https://{address}"
        self._log = log

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    def peak_memory(self) -> int:
        """The most bytes of memory that it had so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) << 10

    async def wait_log(self, words: str) -> None:
        with anyio.fail_after(DEADLINE):
            while not any(words in line["message"] for line in self.lines()):
                assert self.process.returncode is None, self._log.read_text()
                await anyio.sleep(0.02)

    async def wait(self, until: Callable[[], Any]) -> None:
        with anyio.fail_after(DEADLINE):
            while not await until():
                await anyio.sleep(0.02)


@asynccontextmanager
async def run_webhook(
    directory: Path, mount: SecretMount, *flags: str, host: str = "127.0.0.1", **environ: str
) -> AsyncIterator[Running]:
    address, log = f"{host}:{free_port()}", directory / "log"
    tls = ("--tls-cert", mount.certificate, "--tls-key", mount.key, "--tls-period", "0.05")
    arguments = ["webhook", "--backend", "sim", "--address", address, *tls, "--log-format", "json", *flags]
    with log.open("wb") as output:
        process = await anyio.open_process(
            [sys.executable, "-m", "pydra.cli.tool", *arguments],
            stdin=None,
            stdout=output,
            stderr=output,
            env=environment(environ),
        )
    async with process:
        try:
            running = Running(process, log, address)
            await running.wait_log("serving /metrics" if "--http-address" in flags else "answering reviews")
            yield running
        finally:
            if process.returncode is None:
                process.kill()


async def test_the_webhook_serves_logs_refusals_renews_and_leaves_without_failing_a_review(tmp_path: Path) -> None:
    mount = SecretMount(tmp_path / "tls", AUTHORITY.issue(name="first.example.com"))
    async with (
        run_webhook(tmp_path, mount, "--drain-grace", "0.5") as webhook,
        connect(AUTHORITY) as session,
    ):
        assert (await review(session, webhook.url, configs=[RIGHT]))["allowed"] is True
        await review(session, webhook.url, configs=[entry("sim.pydra.dev", sim(n=1))], namespace="team")
        refused = next(line for line in webhook.lines() if line["message"].startswith("refused"))
        mount.replace(AUTHORITY.issue(name="second.example.com"))
        await webhook.wait_log("serving the certificate for second.example.com")

        webhook.process.send_signal(signal.SIGTERM)
        await webhook.wait_log("stopping on SIGTERM")
        assert (await review(session, webhook.url, configs=[RIGHT]))["allowed"] is True
        async with session.get(f"{webhook.url}/readyz") as response:
            assert response.status == 503
        with anyio.fail_after(DEADLINE):
            assert await webhook.process.wait() == 0
        with pytest.raises(aiohttp.ClientConnectorError):
            await review(session, webhook.url, configs=[RIGHT])
        kinds = next(line["message"] for line in webhook.lines() if "takes" in line["message"])
        assert kinds == "driver sim.pydra.dev of backend sim takes sim.pydra.dev/v1alpha1/SimConfig"
    assert refused["message"] == (
        "refused: spec.devices.config[0].opaque.parameters.n: unknown field, allowed: clockMHz, env, sharing"
    )
    assert (refused["object"], refused["operation"]) == ("team/a", "CREATE")
    assert refused["resource"] == "resourceclaims.v1.resource.k8s.io"


async def test_a_crowd_of_reviews_is_answered_and_as_many_as_may_come_fit_into_the_memory_of_the_container(
    tmp_path: Path,
) -> None:
    mount = SecretMount(tmp_path / "tls", AUTHORITY.issue(address="::1"))
    async with run_webhook(tmp_path, mount, host="[::1]") as webhook, AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(connect(AUTHORITY, limit=CROWD // 3)) for _ in range(3)]
        before = webhook.peak_memory()

        async def ask(number: int, padding: int) -> None:
            configs = [RIGHT if number % 2 else WRONG]
            answer = await review(servers[number % 3], webhook.url, configs=configs, padding="x" * padding)
            assert answer["allowed"] is bool(number % 2)

        for count, padding in ((5 * CROWD, 0), (CROWD, SMALL_BODY - 4096), (CROWD, 2 * SMALL_BODY)):
            await asyncio.gather(*(ask(number, padding) for number in range(count)))
        of_each = (webhook.peak_memory() - before) / CROWD
        await asyncio.gather(*(ask(number, MAX_BODY - 4096) for number in range(2 * MOST_LARGE)))
        together = webhook.peak_memory() + of_each * (MOST_CONNECTIONS - CROWD)
    chart = yaml.safe_load((REPOSITORY / "charts" / "pydra" / "values.yaml").read_text())
    allowed = re.fullmatch(r"(\d+)Mi", chart["webhook"]["resources"]["limits"]["memory"])
    assert allowed is not None
    assert together < int(allowed[1]) << 20


async def test_an_expired_certificate_is_no_readiness_until_the_files_hold_a_valid_one(tmp_path: Path) -> None:
    mount, port = SecretMount(tmp_path / "tls", AUTHORITY.issue(days=(-2, -1))), free_port()
    plain = f"http://127.0.0.1:{port}"
    async with (
        run_webhook(tmp_path, mount, "--http-address", f"127.0.0.1:{port}") as webhook,
        aiohttp.ClientSession() as session,
    ):

        async def get(path: str) -> tuple[int, str]:
            async with session.get(f"{plain}{path}") as response:
                return response.status, await response.text()

        status, words = await get("/readyz")
        assert status == 503
        assert "the served certificate has expired on 20" in words
        assert f"until {mount.certificate} and {mount.key} hold a valid one" in words
        assert (await get("/healthz"))[0] == 200, "a restart would not help"
        name = r"pydra_admission_certificate_expiry_timestamp_seconds (\d\S*)"
        expired = re.search(name, (await get("/metrics"))[1])
        assert expired is not None
        assert 0 < float(expired[1]) < time.time()
        mount.replace(AUTHORITY.issue())

        async def is_ready() -> bool:
            return (await get("/readyz"))[0] == 200

        async def is_renewed() -> bool:  # the text of the metrics is kept for a second
            renewed = re.search(name, (await get("/metrics"))[1])
            return renewed is not None and float(renewed[1]) > time.time()

        await webhook.wait(is_ready)
        await webhook.wait(is_renewed)


async def test_sighup_reads_the_log_level_and_the_certificate(tmp_path: Path) -> None:
    config = tmp_path / "webhook.yaml"
    config.write_text("logLevel: info\n")
    mount = SecretMount(tmp_path / "tls", AUTHORITY.issue())
    flags = ("--config", str(config), "--tls-period", "3600")
    async with run_webhook(tmp_path, mount, *flags) as webhook, connect(AUTHORITY) as session:
        config.write_text("logLevel: debug\n")
        mount.replace(AUTHORITY.issue(name="renewed.example.com"))
        webhook.process.send_signal(signal.SIGHUP)
        await webhook.wait_log("serving the certificate for renewed.example.com")
        await review(session, webhook.url, configs=[RIGHT])
        await webhook.wait_log("allowed")
        config.write_text("logLevel: loud\n")
        webhook.process.send_signal(signal.SIGHUP)
        await webhook.wait_log("because those in the file are invalid: logLevel: must be one of")


def run(*arguments: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pydra.cli.tool", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=environment(environ), cwd=cwd
    )


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("webhook",), 2, "pydra: backends: must name at least one backend, as in --backend sim\npydra: see pydra --h"),
        (("webhook", "--backend", "simm"), 2, 'pydra: backend simm is not installed (did you mean "sim"?)'),
        (("webhook", "--backend", "sim", "--tls-cert", "/proc/nowhere/a", "--tls-key", "/proc/nowhere/b"), 2,
         "pydra: tlsCert, tlsKey: /proc/nowhere/a cannot be read: No such file or directory\n"),
        (("webhook", "--backend", "nowhere:"), 1, "pydra: backend nowhere: there is no module nowhere"),
        (("policy",), 2, "the following arguments are required: --backend"),
        (("policy", "--backend", "nowhere:"), 1, "pydra: backend nowhere: there is no module nowhere"),
        (("schema", "--backend", "sim", "--kind", "X"), 2, "pydra: backend sim has no config of kind X; its kinds: "),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said_without_a_traceback(arguments: tuple[str, ...], code: int, words: str) -> None:
    done = run_forked("pydra.cli.tool", arguments, environment({}))
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_the_policy_is_printed_as_yaml_for_the_driver_that_is_named() -> None:
    command = ("policy", "--backend", "sim", "--driver", "accel.example.com")
    done = run_forked("pydra.cli.tool", command, environment())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("# Written by `pydra policy --backend sim --driver accel.example.com` from the types")
    policy, binding = yaml.safe_load_all(done.stdout)
    assert (policy["kind"], binding["kind"]) == ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    assert policy["metadata"]["name"] == "opaque-config.accel.example.com"


def test_the_schema_of_a_module_where_one_stands_is_printed_as_json(tmp_path: Path) -> None:
    (tmp_path / "my_fpga.py").write_text(
        "import msgspec\n"
        "class Config(msgspec.Struct):\n    n: int = 0\n"
        "CONFIG_TYPES = {'fpga.example.com/v1/Config': Config}\n"
        "async def discover(): ...\nasync def prepare(claim): ...\nasync def unprepare(claim, prepared): ...\n"
        "print('noise')\n"
    )
    done = run("schema", "--backend", "my_fpga:", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "noise\n")
    assert json.loads(done.stdout)["properties"]["n"] == {"type": "integer", "default": 0}
