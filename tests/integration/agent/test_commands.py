"""The two commands before anything runs: help, versions, and an environment that is shared with the other `pydra`."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import IO

import anyio
import pytest
from anyio.streams.text import TextReceiveStream

import pydra
from tests.forked import run_forked


def build_environ(path: Path | None) -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYDRA_")}
    if path is not None:
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(path), environ.get("PYTHONPATH", "")]))
    return environ


def run(module: str, *arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    return run_forked(module, arguments, build_environ(path))


def run_anew(
    module: str, *arguments: str, path: Path | None = None, stdout: int | IO[str] = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    """In a new interpreter, where the start or the output matters."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
        env=build_environ(path),
    )


@pytest.mark.parametrize("module", ["pydra.cli.agent", "pydra.cli.tool"])
def test_each_command_tells_its_version(module: str) -> None:
    done = run(module, "--version")
    assert done.returncode == 0
    assert done.stdout.split()[1] == pydra.__version__


@pytest.mark.parametrize("arguments", [("pydra.cli.tool", "backends"), ("pydra.cli.agent", "--backend", "sim")])
def test_an_environment_shared_with_the_other_pydra_is_refused_with_what_to_do(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    foreign = tmp_path / "pydra-1.0.dist-info"
    foreign.mkdir()
    (foreign / "METADATA").write_text("Metadata-Version: 2.1\nName: pydra\nVersion: 1.0\n")
    done = run(*arguments, path=tmp_path)
    assert done.returncode == 2
    assert "the distribution 'pydra' 1.0, another project" in done.stderr
    assert "pip uninstall pydra" in done.stderr


def test_the_installed_backends_are_listed_with_their_distributions() -> None:
    done = run("pydra.cli.tool", "backends")
    assert done.returncode == 0
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [
        ["NAME", "DISTRIBUTION"],
        ["amd", "pydra-amd"],
        ["cpu", "pydra-cpu"],
        ["net", "pydra-net"],
        ["nvidia", "pydra-nvidia"],
        ["nvidia-compute-domain", "pydra-nvidia"],
        ["sim", "pydra-sim"],
        ["tpu", "pydra-tpu"],
    ]


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("pydra ch", "check checkpoint"),
        ("pydra dev --backend s", "sim"),
        ("pydra explain claim --kubec", "--kubeconfig"),
        ("pydra slices -o j", "json"),
        ("pydra cdi validate /etc/host", "/etc/hosts"),
    ],
)
def test_bash_completes_commands_flags_values_and_files(typed: str, completed: str, completion: Path) -> None:
    script = f"source {completion}; COMP_WORDS=({typed}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _shtab_pydra"
    done = subprocess.run(
        ["bash", "-c", f'{script}; echo "${{COMPREPLY[@]}}"'], capture_output=True, text=True, check=True
    )
    assert completed in done.stdout.strip()


@pytest.fixture(scope="module")
def completion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("completion") / "pydra.bash"
    file.write_text(run("pydra.cli.tool", "completion", "bash").stdout)
    return file


def test_zsh_gets_a_script_of_its_own() -> None:
    assert run("pydra.cli.tool", "completion", "zsh").stdout.startswith("#compdef pydra\n")


def test_a_terminal_gets_a_drawn_table_and_a_pipe_plain_columns() -> None:
    reader, terminal = pty.openpty()
    with open(terminal, "w", encoding="utf-8") as output:
        assert run_anew("pydra.cli.tool", "backends", stdout=output).returncode == 0
        drawn = os.read(reader, 65536).decode()
    os.close(reader)
    assert ("─" in drawn, "pydra-sim" in drawn) == (True, True)
    assert run("pydra.cli.tool", "backends").stdout.isascii()


def test_python_runs_the_package_as_the_command() -> None:
    assert run_anew("pydra", "--version").stdout == f"pydra {pydra.__version__}\n"


@pytest.mark.parametrize(
    ("module", "arguments"),
    [("pydra.cli.tool", ("check", "sim", "--conf", "x")), ("pydra.cli.agent", ("--conf", "x"))],
)
def test_an_abbreviated_flag_is_refused_and_the_whole_one_named(module: str, arguments: tuple[str, ...]) -> None:
    done = run(module, *arguments)
    assert done.returncode == 2
    assert 'unrecognized arguments: --conf (did you mean "--config"?)' in done.stderr


def test_a_command_that_does_not_exist_ends_with_2() -> None:
    assert run("pydra.cli.tool", "deploy").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(("--kubeconfig", "/proc/nowhere"), "kubeconfig /proc/nowhere", id="no kubeconfig"),
        pytest.param(("--http-address", "192.0.2.1:1"), "httpAddress: cannot listen on 192.0.2.1:1", id="no address"),
        pytest.param(("--log-file", "/proc/nowhere/log"), "logFile: /proc/nowhere/log", id="no log"),
        pytest.param(("--prepare-deadline", "99"), "prepareDeadline: 99 s is too long", id="a wrong setting"),
        pytest.param(("--backend", "simm"), 'backend simm is not installed (did you mean "sim"?)', id="no backend"),
        pytest.param(
            ("--kubeconfig", ""),
            "no credentials for the API server: not in a pod (KUBERNETES_SERVICE_HOST is not set), no kubeconfig, and"
            " /nonexistent/.kube/config does not exist; name a kubeconfig with --kubeconfig",
            id="no way to the API server",
        ),
    ],
)
def test_what_keeps_the_agent_from_starting_is_one_line_and_exit_code_2(
    arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/nonexistent")
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG)
    places = ("--kubelet-root", str(tmp_path), "--records-dir", str(tmp_path), "--cdi-dir", str(tmp_path))
    known = ("--backend", "sim", "--node-name", "n", "--http-address", "", "--kubeconfig", str(kubeconfig), *places)
    done = run("pydra.cli.agent", *known, *arguments)
    assert done.returncode == 2
    assert f"pydra-agent: {words}" in done.stderr
    assert "Traceback" not in done.stderr


KUBECONFIG = """
clusters: [{name: c, cluster: {server: "http://127.0.0.1:9"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {token: t}}]
current-context: c
"""


def test_checking_a_backend_that_is_not_installed_says_which_are() -> None:
    done = run("pydra.cli.tool", "check", "simm")
    assert done.returncode != 0
    assert "simm" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_checking_a_backend_reads_its_settings_from_the_agents_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text('backendSettings: {"tuned:": {maxShares: 7}, other: {a: 1}}')
    trouble = Path(__file__).parents[1] / "backends" / "trouble"
    done = run("pydra.cli.tool", "check", "tuned:", "--config", str(file), path=trouble)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "maxShares = 7 (allowed: an integer >= 1; default: 4; from: backendSettings.tuned:.maxShares" in done.stdout
    record = tmp_path / "run" / "renamed.example.com" / "claims" / "uid.json"
    record.parent.mkdir(parents=True)
    record.touch()
    file.write_text(f'{{recordsDir: {tmp_path}/run, drivers: {{"tuned:": renamed.example.com}}}}')
    done = run("pydra.cli.tool", "check", "tuned:", "--config", str(file), "-o", "json", path=trouble)
    report = json.loads(done.stdout)
    assert (report["backend"], report["ok"], done.returncode) == ("tuned", True, 0)
    assert f"an agent has prepared claims on this node ({record})" in str(report["checks"])
    file.write_text("backendSettings: [tuned]")
    done = run("pydra.cli.tool", "check", "tuned:", "--config", str(file), path=trouble)
    assert done.returncode == 2
    assert done.stderr.startswith(f"pydra: {file}: backendSettings: must be a mapping (found ['tuned'])")


async def test_checking_a_backend_prints_each_check_when_it_is_made(tmp_path: Path) -> None:
    """The backend waits in unprepare until this test has read what was printed before."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    (tmp_path / "slow.py").write_text(
        "import asyncio\nfrom pydra import Device, Inventory\nDRIVER = 'slow.example.com'\n"
        "async def discover(): return Inventory(devices=(Device(name='a'),))\n"
        "async def prepare(claim): return [device.prepared() for device in claim.devices]\n"
        f"async def unprepare(claim, prepared): await asyncio.to_thread(open({str(gate)!r}).read)\n"
    )
    command = [sys.executable, "-m", "pydra.cli.tool", "check", f"{tmp_path}/slow.py"]
    async with await anyio.open_process(command, stderr=None) as process:
        assert process.stdout is not None
        lines = TextReceiveStream(process.stdout)
        text = ""
        while "ok    discover answers the same again" not in text:
            text += await lines.receive()
        assert "a device that it does not have" not in text, "which calls unprepare"
        process.kill()


def test_an_internal_error_is_one_line() -> None:
    program = (
        "from pydra.cli.output import hide_tracebacks; hide_tracebacks('pydra')\n"
        "raise ExceptionGroup('tasks', [ExceptionGroup('one', [KeyError('why')])])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    told = "pydra: internal error: KeyError: 'why'; `pydra --debug ...` shows the traceback\n"
    assert (done.returncode, done.stderr) == (1, told)


def test_output_that_cannot_be_written_is_said_in_a_sentence() -> None:
    with open("/dev/full", "w", encoding="ascii") as full:
        done = run_anew("pydra.cli.tool", "policy", "--backend", "sim", stdout=full)
    assert (done.returncode, done.stderr) == (1, "pydra: [Errno 28] No space left on device\n")


def test_a_reader_who_has_read_enough_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="ascii") as gone:
        done = run_anew("pydra.cli.tool", "policy", "--backend", "sim", stdout=gone)
    assert (done.returncode, done.stderr) == (141, "")


def test_pydra_dev_without_pydra_dev_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pydra_dev'] = None\n")
    done = run_anew("pydra.cli.tool", "dev", path=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "`pydra dev` needs the distribution pydra-dev" in done.stderr
    assert done.stderr.endswith("pip install ./plugins/pydra-dev\n")
