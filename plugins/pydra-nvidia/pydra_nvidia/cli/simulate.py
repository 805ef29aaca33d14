"""`pydra-nvidia simulate EVENT`: things that happen to a simulated machine while something else runs on it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pydra_nvidia.cli.arguments import minor
from pydra_nvidia.settings import PREFIX
from pydra_pci import needs_simulation

if TYPE_CHECKING:
    from pydra_nvidia.simulation.simulation import Injector


class Event(NamedTuple):
    """What may happen: its arguments, how it is done, and what is said of it."""

    name: str
    help: str
    arguments: tuple[tuple[str, dict[str, Any]], ...]
    act: Callable[[Injector, argparse.Namespace], object]
    says: str


def _argument(name: str, **options: Any) -> tuple[str, dict[str, Any]]:
    return name, options


GPU = _argument("gpu", metavar="GPU", type=minor, help="its minor number, as 3 or gpu-3")
PID = _argument("pid", metavar="PID", type=int)
START = _argument("start", metavar="START", type=int, help="first memory slice")
GI = _argument("--gi", type=int, metavar="N", help="of this GPU instance")
CI = _argument("--ci", type=int, metavar="N", help="of this compute instance in it")
FORCE = _argument(
    "--force", action="store_true", help="although processes have the GPU open, which no tool can: from outside"
)
VALUES = _argument("values", metavar="NAME=NUMBER", nargs="+", help="such as remap_pending=1; an unknown one lists all")


def _start_process(inject: Injector, given: argparse.Namespace) -> None:
    from pydra_nvidia.simulation.simulation import Process  # noqa: PLC0415

    process = Process(pid=given.pid, name=given.name, memory=given.memory, kind=given.kind, gi=given.gi, ci=given.ci)
    inject.start_process(given.gpu, process)


def _numbers(pairs: list[str]) -> dict[str, int]:
    from pydra_nvidia.simulation.simulation import InjectionError  # noqa: PLC0415

    found: dict[str, int] = {}
    for pair in pairs:
        name, _, number = pair.partition("=")
        if not number.isdecimal():
            raise InjectionError(f"{pair!r} is not NAME=NUMBER")
        found[name] = int(number)
    return found


EVENTS = (
    Event(
        "xid",
        "the driver reports an XID",
        (GPU, _argument("code", metavar="CODE", type=int), GI, CI),
        lambda inject, given: inject.xid(given.gpu, given.code, gi=given.gi, ci=given.ci),
        "gpu-{gpu}: XID {code}",
    ),
    Event(
        "lose",
        "the GPU falls off the bus",
        (GPU,),
        lambda inject, given: inject.lose(given.gpu),
        "gpu-{gpu} is lost",
    ),
    Event(
        "answer",
        "the lost GPU answers again, without a reset",
        (GPU,),
        lambda inject, given: inject.answer(given.gpu),
        "gpu-{gpu} answers again",
    ),
    Event(
        "reset",
        "somebody resets the GPU: it is well again, a pending MIG mode comes into effect",
        (GPU, FORCE),
        lambda inject, given: inject.reset(given.gpu, force=given.force),
        "gpu-{gpu} was reset",
    ),
    Event(
        "recovery",
        "the driver asks for a recovery action",
        (GPU, _argument("action", metavar="ACTION", type=int, help="0 none, 1 GPU reset, 2 node reboot, ...")),
        lambda inject, given: inject.recovery_action(given.gpu, given.action),
        "gpu-{gpu} wants the recovery action {action}",
    ),
    Event(
        "count",
        "errors are counted",
        (GPU, VALUES),
        lambda inject, given: inject.count(given.gpu, **_numbers(given.values)),
        "gpu-{gpu} has counted {values}",
    ),
    Event(
        "measure",
        "temperature, power, utilization or memory in use change",
        (GPU, VALUES),
        lambda inject, given: inject.measure(given.gpu, **_numbers(given.values)),
        "gpu-{gpu} measures {values}",
    ),
    Event(
        "links-down",
        "these NVLinks go down, all others up",
        (GPU, _argument("links", metavar="LINK", type=int, nargs="*")),
        lambda inject, given: inject.links_down(given.gpu, *given.links),
        "gpu-{gpu}: links {links} are down",
    ),
    Event(
        "process",
        "a process uses the GPU",
        (
            GPU,
            PID,
            _argument("--name", metavar="NAME", default="python3"),
            _argument("--memory", metavar="MIB", type=int, default=512),
            _argument("--kind", choices=("compute", "graphics", "mps"), default="compute"),
            GI,
            CI,
        ),
        _start_process,
        "process {pid} uses gpu-{gpu}",
    ),
    Event(
        "process-end",
        "the process ends",
        (GPU, PID),
        lambda inject, given: inject.end_process(given.gpu, given.pid),
        "process {pid} no longer uses gpu-{gpu}",
    ),
    Event(
        "mig-mode",
        "somebody switches the MIG mode, with all that it takes",
        (GPU, _argument("mode", choices=("on", "off")), FORCE),
        lambda inject, given: inject.set_mig_mode(given.gpu, given.mode == "on", force=given.force),
        "gpu-{gpu} has its MIG mode {mode}",
    ),
    Event(
        "mig-create",
        "somebody else makes a partition",
        (GPU, _argument("profile", metavar="PROFILE", help="such as 1g.10gb"), START),
        lambda inject, given: inject.create_mig(given.gpu, given.profile, given.start),
        "gpu-{gpu} has {profile} at {start}",
    ),
    Event(
        "mig-destroy",
        "somebody else destroys a partition",
        (GPU, START),
        lambda inject, given: inject.destroy_mig(given.gpu, given.start),
        "gpu-{gpu} has nothing at {start} any more",
    ),
    Event(
        "plug",
        "the GPU is put in",
        (GPU,),
        lambda inject, given: inject.plug(given.gpu),
        "gpu-{gpu} is plugged in",
    ),
    Event(
        "unplug",
        "the GPU is taken out",
        (GPU,),
        lambda inject, given: inject.unplug(given.gpu),
        "gpu-{gpu} is taken out",
    ),
    Event(
        "unload-driver",
        "rmmod nvidia",
        (FORCE,),
        lambda inject, given: inject.unload_driver(force=given.force),
        "the driver is unloaded",
    ),
    Event(
        "load-driver",
        "modprobe nvidia; with a version, the driver was replaced by that",
        (_argument("version", metavar="VERSION", nargs="?", default=""), FORCE),
        lambda inject, given: inject.load_driver(given.version, force=given.force),
        "the driver {version} is loaded",
    ),
    Event(
        "reboot",
        "the machine starts anew: all that is volatile is gone",
        (),
        lambda inject, _given: inject.reboot(),
        "the machine was rebooted",
    ),
)


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
    for event in EVENTS:
        one = events.add_parser(event.name, help=event.help, description=f"{event.help[0].upper()}{event.help[1:]}.")
        for name, options in event.arguments:
            one.add_argument(name, **options)
        one.set_defaults(event=event)
    parser.set_defaults(command=run)


def run(parsed: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Raises InjectionError for what cannot happen, ScenarioError when there is no machine, SimulationMissing."""
    with needs_simulation("pydra_nvidia"):
        from pydra_nvidia.simulation.simulation import default_state, reopen_simulation  # noqa: PLC0415 - only for this

    state = parsed.state or environ.get(f"{PREFIX}STATE") or default_state()
    event: Event = parsed.event
    event.act(reopen_simulation(state).inject, parsed)
    print(" ".join(event.says.format_map(_words(parsed)).split()))
    return 0


def _words(parsed: argparse.Namespace) -> dict[str, str]:
    return {
        name: ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
        for name, value in vars(parsed).items()
    }
