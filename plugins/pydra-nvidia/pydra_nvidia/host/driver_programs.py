"""The driver's own programs: found in its root, run without a shell and with an end.

Only what NVML cannot do goes through them: time slices (nvidia-smi) and MPS (nvidia-cuda-mps-control).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence

import msgspec

from pydra import ClaimError
from pydra_nvidia.host.driver_root import DriverRoot
from pydra_nvidia.host.file_search import is_program

SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")

KILL_DEADLINE = 5.0
"""Seconds that a killed program is waited for."""

OUTPUT_LIMIT = 2000
"""Bytes of a program's output, its end, that an error reports."""


WRITE_LIMIT = 64 << 20
"""Bytes that a program may write to a file: what it says may come from a container. A log of MPS may have 8 MiB."""


class ProgramMissing(ClaimError):
    """The driver's installation lacks a program that the claim's settings need."""

    reason = "DriverProgramMissing"


class ProgramFailed(ClaimError):
    """A program of the driver refused, or was killed (`ended` is False); `output` is the end of what it said."""

    reason = "DriverProgramFailed"

    def __init__(self, command: str, outcome: str, output: str, *, ended: bool = True) -> None:
        self.output = output
        self.ended = ended
        said = f': "{output}"' if output else " and said nothing"
        advice = "; the backend needs root for this" if "permission" in output.lower() else ""
        super().__init__(f"{command} {outcome}{said}{advice}")


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A program of the driver: its path inside the driver's root, and as this process sees it."""

    name: str
    inside: str
    here: str


def find_program(root: DriverRoot, name: str, package: str = "nvidia-utils or nvidia-compute-utils") -> Program:
    """The program in the driver's root. Raises ProgramMissing, saying where it was looked for, and its `package`."""
    for directory in root.program_dirs:
        inside = root.resolve(f"{directory}/{name}")
        if inside is not None and is_program(root.path_here(inside)):
            return Program(name=name, inside=inside, here=root.path_here(inside))
    raise ProgramMissing(
        f"the driver's installation at {root.host_path} has no program {name}, looked for in"
        f" {', '.join(root.program_dirs)}; install it (packages call it {package})"
    )


def find_environment(root: DriverRoot, program: Program, outside: Callable[[str], str]) -> dict[str, str]:
    """How the program, started from outside its root, finds others and the driver's libraries.

    `outside` is a path inside the root as the program will see it. The libraries' directory is named only if it has
    no C library: that of another root would be mixed with the loader of this one.
    """
    directory = os.path.dirname(outside(program.inside))
    environment = {"PATH": ":".join(dict.fromkeys([directory, *SYSTEM_PATH]))}
    if not os.path.exists(os.path.join(root.path_here(root.library_dir), "libc.so.6")):
        environment["LD_LIBRARY_PATH"] = outside(root.library_dir)
    return environment


async def run_program(
    command: str,
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    deadline: float,
    text: str = "",
    files: Sequence[int] = (),
    outlives: bool = False,
) -> str:
    """Run it with `text` to read and these descriptors, and return what it said, both streams together.

    What it starts `outlives` the call, or it may write no file of more than `WRITE_LIMIT` bytes.
    `command` is its name in errors; `deadline` in seconds. It is waited for, not its output: what it leaves running
    may hold that open. Raises ProgramFailed when it cannot be started, fails, or has to be killed.
    """
    with contextlib.ExitStack() as stack:
        try:
            said, stdin = [stack.enter_context(tempfile.TemporaryFile(buffering=0)) for _ in range(2)]
            stdin.write(text.encode())
            stdin.seek(0)
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=stdin,
                stdout=said,
                stderr=asyncio.subprocess.STDOUT,
                env={**_clean(os.environ), **environment},
                start_new_session=True,
                pass_fds=files,
            )
        except OSError as error:
            raise ProgramFailed(command, f"cannot be started ({error.strerror})", "") from error
        if not outlives:
            with contextlib.suppress(OSError):  # it has ended
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (WRITE_LIMIT, WRITE_LIMIT))
        try:
            status = await asyncio.wait_for(process.wait(), deadline)
        except TimeoutError as error:
            outcome = f"did not end within {deadline:.3g} s"
            raise ProgramFailed(command, outcome, _tail(said.fileno()), ended=False) from error
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                with contextlib.suppress(TimeoutError):  # the kernel may keep it until the GPU answers
                    await asyncio.wait_for(process.wait(), KILL_DEADLINE)
        output = _tail(said.fileno())
    if status != 0:
        raise ProgramFailed(command, f"failed with status {status}", output)
    return output


def _clean(environ: Mapping[str, str]) -> dict[str, str]:
    """Without what would make another driver, other devices or another daemon of this process's environment theirs."""
    return {name: value for name, value in environ.items() if not name.startswith(("CUDA_", "LD_", "PYDRA_"))}


def _tail(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    data = os.pread(descriptor, OUTPUT_LIMIT, max(size - OUTPUT_LIMIT, 0))
    return " ".join(data.decode(errors="replace").split())
