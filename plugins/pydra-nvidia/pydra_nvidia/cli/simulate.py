"""`pydra-nvidia simulate EVENT`: things that happen to a simulated machine while something else runs on it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, TypeAlias

from pydra_nvidia.cli.arguments import minor
from pydra_nvidia.settings import PREFIX
from pydra_pci import needs_simulation

Argument: TypeAlias = tuple[str, Mapping[str, Any]]
"""An argument of events, which has the name of the injector's parameter, and the options of argparse for it."""


def _argument(name: str, **options: Any) -> Argument:
    return name, options


def _is_on(text: str) -> bool:
    if text not in ("on", "off"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither on nor off")
    return text == "on"


def _pair(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not number.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=NUMBER")
    return name, int(number)


GPU = _argument("minor", metavar="GPU", type=minor, help="its minor number, as 3 or gpu-3")
PID = _argument("pid", metavar="PID", type=int)
CODE = _argument("code", metavar="CODE", type=int)
ACTION = _argument("action", metavar="ACTION", type=int, help="0 none, 1 GPU reset, 2 node reboot, ...")
LINKS = _argument("links", metavar="LINK", type=int, nargs="*")
MODE = _argument("enabled", metavar="MODE", type=_is_on, help="on or off")
PROFILE = _argument("profile", metavar="PROFILE", help="such as 1g.10gb")
START = _argument("start", metavar="START", type=int, help="first memory slice")
VERSION = _argument("version", metavar="VERSION", nargs="?", default="")
GI = _argument("--gi", type=int, metavar="N", help="of this GPU instance")
CI = _argument("--ci", type=int, metavar="N", help="of this compute instance in it")
FORCE = _argument(
    "--force", action="store_true", help="although processes have the GPU open, which no tool can: from outside"
)
COLD = _argument("--cold", action="store_true", help="without FABRIC_MODE_RESTART=1: no partition is active")
VALUES = _argument(
    "values", metavar="NAME=NUMBER", type=_pair, nargs="+", help="such as remap_pending=1; an unknown one lists all"
)
PROCESS = (
    _argument("--name", metavar="NAME", default="python3"),
    _argument("--memory", metavar="MIB", type=int, default=512),
    _argument("--kind", choices=("compute", "graphics", "mps"), default="compute"),
)

EVENTS: Mapping[str, tuple[str, tuple[Argument, ...]]] = {
    "xid": ("the driver reports an XID", (GPU, CODE, GI, CI)),
    "lose": ("the GPU falls off the bus", (GPU,)),
    "answer": ("the lost GPU answers again, without a reset", (GPU,)),
    "reset": ("somebody resets the GPU: a pending MIG mode comes into effect", (GPU, FORCE)),
    "recovery-action": ("the driver asks for a recovery action", (GPU, ACTION)),
    "count": ("errors are counted", (GPU, VALUES)),
    "measure": ("temperature, power or use change", (GPU, VALUES)),
    "links-down": ("these NVLinks go down, all others up", (GPU, LINKS)),
    "start-process": ("a process uses the GPU", (GPU, PID, *PROCESS, GI, CI)),
    "end-process": ("the process ends", (GPU, PID)),
    "set-mig-mode": ("somebody switches the MIG mode, with all that it takes", (GPU, MODE, FORCE)),
    "create-mig": ("somebody else creates a partition", (GPU, PROFILE, START)),
    "destroy-mig": ("somebody else destroys a partition", (GPU, START)),
    "plug": ("the GPU is put in", (GPU,)),
    "unplug": ("the GPU is taken out", (GPU,)),
    "unload-driver": ("rmmod nvidia", (FORCE,)),
    "load-driver": ("modprobe nvidia, of another version", (VERSION, FORCE)),
    "restart-fabric-manager": ("Fabric Manager is restarted, and asks which partitions are active", (COLD,)),
    "reboot": ("the machine restarts: all that is volatile is gone", ()),
}
"""What is said of each event, and its arguments. A method of the injector has the same name."""


def add_command(commands: Any) -> None:
    """The subcommand, with one of its own for each event."""
    parser = commands.add_parser(
        "simulate",
        help="cause an event on a simulated machine",
        description="Cause an event on a simulated machine while an agent or a test uses it.",
    )
    parser.add_argument(
        "--state",
        metavar="DIR",
        help=f"the state directory of the simulated machine ({PREFIX}STATE) [below the temporary directory]",
    )
    events = parser.add_subparsers(title="events", metavar="EVENT", required=True)
    for name, (text, arguments) in EVENTS.items():
        one = events.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        for argument, options in arguments:
            one.add_argument(argument, **options)
        one.set_defaults(event=name)
    parser.set_defaults(command=run)


def run(parsed: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Raises InjectionError for what cannot happen, ScenarioError when there is no machine, SimulationMissing."""
    with needs_simulation("pydra_nvidia"):
        from pydra_nvidia.simulation.simulation import default_state, reopen_simulation  # noqa: PLC0415 - only for this

    inject = reopen_simulation(parsed.state or environ.get(f"{PREFIX}STATE") or default_state()).inject
    names = [argument.lstrip("-") for argument, _ in EVENTS[parsed.event][1]]
    given = {name: getattr(parsed, name) for name in names}
    given |= dict(given.pop("values", ()))
    getattr(inject, parsed.event.replace("-", "_"))(**given)
    print(f"{parsed.event}: done")
    return 0
