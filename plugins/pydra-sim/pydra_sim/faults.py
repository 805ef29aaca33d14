"""Faults on demand: what native code does to a process, around the calls that the scenario names."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import math
import os
import time
import zlib
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import msgspec

from pydra import Claim, ClaimError, TerminalError
from pydra_sim.hardware import Machine
from pydra_sim.scenario import Fault, ScenarioError

ERRORS = {"raise": RuntimeError, "refuse": ClaimError, "refuse-forever": TerminalError}
MARKS = {"unhealthy": "unhealthy", "unplug": "unplugged"}
EFFECTS: dict[str, Callable[[Fault], object]] = {
    "hang": lambda fault: time.sleep(fault.seconds),
    "gil-hang": lambda fault: ctypes.PyDLL(None).sleep(int(max(1, fault.seconds))),
    "segfault": lambda _: ctypes.string_at(0),
    "abort": lambda _: os.abort(),
    "exit": lambda _: os._exit(3),
    "stdout-noise": lambda _: os.write(1, b"libsim: WARNING: hello from native code\n"),
}


def inject_faults(backend: Any, machine: Machine) -> SimpleNamespace:
    """The backend's coroutines, each with the faults of the scenario before and after it."""
    calls = get_args(get_type_hints(Fault)["call"])
    return SimpleNamespace(**{name: _wrap(getattr(backend, name), name, machine) for name in calls})


def _wrap(coroutine: Callable[..., Awaitable[Any]], call: str, machine: Machine) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(coroutine)
    async def wrapped(*arguments: Any) -> Any:
        claim = next((one for one in arguments if isinstance(one, Claim)), None)
        garbage = await _strike(machine, call, "start", claim)
        answer = await coroutine(*arguments)
        garbage |= await _strike(machine, call, "end", claim)
        return ["\u0007 this is not an answer"] if garbage else answer

    return wrapped


async def _strike(machine: Machine, call: str, at: str, claim: Claim | None) -> bool:
    """Let the faults for this moment happen; whether one of them spoils the answer."""
    name, devices = (claim.name, [one.device for one in claim.devices]) if claim else ("", [])
    try:
        faults = machine.read_scenario().faults
    except ScenarioError:  # which calls that need the scenario raise
        return False
    garbage = False
    for fault in faults:
        if (fault.call, fault.at) != (call, at) or fault.claim not in ("", name) or fault.device not in ("", *devices):
            continue
        earlier = machine.count(f"{zlib.crc32(msgspec.json.encode(fault)):08x}")
        if fault.after <= earlier < fault.after + (fault.count or math.inf):
            if fault.do in MARKS:
                for device in [fault.device] if fault.device else devices:
                    machine.mark(MARKS[fault.do], device, fault.message)
            await act(fault)
            garbage |= fault.do == "garbage"
    return garbage


async def act(fault: Fault) -> None:
    """Do to this process what the fault says."""
    if fault.do in ERRORS:
        raise ERRORS[fault.do](fault.message)
    if fault.do == "slow":
        await asyncio.sleep(fault.seconds)
    elif fault.do in EFFECTS:
        EFFECTS[fault.do](fault)
