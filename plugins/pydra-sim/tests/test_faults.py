"""When faults strike, and what they do to a process."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from pydra import ClaimError, TerminalError
from pydra_sim.faults import Fault, act


@pytest.mark.parametrize(
    ("fault", "struck"),
    [
        (Fault(do="raise"), [True, True, True, True]),
        (Fault(do="raise", count=2), [True, True, False, False]),
        (Fault(do="raise", after=1), [False, True, True, True]),
        (Fault(do="raise", after=1, count=1), [False, True, False, False]),
    ],
    ids=["always", "counted", "late", "once, late"],
)
def test_a_fault_strikes_as_often_as_it_says(fault: Fault, struck: list[bool]) -> None:
    assert [fault.strikes(earlier) for earlier in range(4)] == struck


@pytest.mark.parametrize(
    ("fault", "matches"),
    [
        (Fault(do="raise"), True),
        (Fault(do="raise", call="unprepare"), False),
        (Fault(do="raise", claim="mine"), True),
        (Fault(do="raise", claim="other"), False),
        (Fault(do="raise", device="accel-1"), True),
        (Fault(do="raise", device="accel-2"), False),
        (Fault(do="raise", claim="mine", device="accel-2"), False),
    ],
)
def test_a_fault_is_meant_for_the_calls_that_it_names(fault: Fault, matches: bool) -> None:
    assert fault.matches("prepare", "mine", ["accel-0", "accel-1"]) is matches


def test_equal_faults_share_a_count_and_others_do_not() -> None:
    assert Fault(do="raise", count=2).key() == Fault(do="raise", count=2).key()
    assert Fault(do="raise", count=2).key() != Fault(do="raise", count=3).key()


@pytest.mark.parametrize(
    ("do", "error"), [("raise", RuntimeError), ("refuse", ClaimError), ("refuse-forever", TerminalError)]
)
async def test_errors_carry_the_message_of_the_scenario(do: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="told so"):
        await act(Fault(do=do, message="told so"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("do", "status", "stdout"),
    [
        ("segfault", -signal.SIGSEGV, b""),
        ("abort", -signal.SIGABRT, b""),
        ("exit", 3, b""),
        ("stdout-noise", 0, b"libsim: WARNING: hello from native code\n"),
        ("garbage", 0, b""),
    ],
)
def test_a_fault_does_to_a_process_what_native_code_would(do: str, status: int, stdout: bytes) -> None:
    code = f"import asyncio; from pydra_sim.faults import Fault, act; asyncio.run(act(Fault(do={do!r})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=20, check=False)
    assert (done.returncode, done.stdout) == (status, stdout)


@pytest.mark.parametrize(("do", "ticks"), [("slow", True), ("hang", False), ("gil-hang", False)])
def test_the_event_loop_runs_on_only_while_a_call_is_slow(do: str, ticks: bool) -> None:
    code = (
        "import asyncio\nfrom pydra_sim.faults import Fault, act\n"
        "async def main():\n"
        " ticks = []\n"
        " asyncio.get_running_loop().call_later(0.01, ticks.append, 1)\n"
        " await asyncio.sleep(0)\n"
        f" await act(Fault(do={do!r}, seconds=0.2))\n"
        " print(bool(ticks))\n"
        "asyncio.run(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=20, check=True)
    assert done.stdout.decode().strip() == str(ticks)
