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
    """What may happen: its arguments, what is said of it, and how it is done.

    `act` is a method of the injector that has the arguments as parameters; empty: the one of the event's name.
    """

    name: str
    help: str
    arguments: tuple[tuple[str, dict[str, Any]], ...]
    says: str
    act: str | Callable[[Injector, argparse.Namespace], object] = ""

    def happen(self, inject: Injector, given: argparse.Namespace) -> None:
        """Let it happen; raises InjectionError."""
        if callable(self.act):
            self.act(inject, given)
            return
        values = {name.lstrip("-"): getattr(given, name.lstrip("-")) for name, _ in self.arguments}
        getattr(inject, self.act or self.name.replace("-", "_"))(**values)


def _argument(name: str, **options: Any) -> tuple[str, dict[str, Any]]:
    return name, options


GPU = _argument("minor", metavar="GPU", type=minor, help="its minor number, as 3 or gpu-3")
PID = _argument("pid", metavar="PID", type=int)
CODE = _argument("code", metavar="CODE", type=int)
ACTION = _argument("action", metavar="ACTION", type=int, help="0 none, 1 GPU reset, 2 node reboot, ...")
LINKS = _argument("links", metavar="LINK", type=int, nargs="*")
MODE = _argument("mode", choices=("on", "off"))
PROFILE = _argument("profile", metavar="PROFILE", help="such as 1g.10gb")
START = _argument("start", metavar="START", type=int, help="first memory slice")
VERSION = _argument("version", metavar="VERSION", nargs="?", default="")
GI = _argument("--gi", type=int, metavar="N", help="of this GPU instance")
CI = _argument("--ci", type=int, metavar="N", help="of this compute instance in it")
FORCE = _argument(
    "--force", action="store_true", help="although processes have the GPU open, which no tool can: from outside"
)
ANEW = _argument("--anew", action="store_true", help="without FABRIC_MODE_RESTART=1: no partition is active")
VALUES = _argument("values", metavar="NAME=NUMBER", nargs="+", help="such as remap_pending=1; an unknown one lists all")
PROCESS = (
    _argument("--name", metavar="NAME", default="python3"),
    _argument("--memory", metavar="MIB", type=int, default=512),
    _argument("--kind", choices=("compute", "graphics", "mps"), default="compute"),
)


def _start_process(inject: Injector, given: argparse.Namespace) -> None:
    from pydra_nvidia.simulation.simulation import Process  # noqa: PLC0415

    process = Process(pid=given.pid, name=given.name, memory=given.memory, kind=given.kind, gi=given.gi, ci=given.ci)
    inject.start_process(given.minor, process)


def _count(inject: Injector, given: argparse.Namespace) -> None:
    inject.count(given.minor, **_numbers(given.values))


def _measure(inject: Injector, given: argparse.Namespace) -> None:
    inject.measure(given.minor, **_numbers(given.values))


def _links_down(inject: Injector, given: argparse.Namespace) -> None:
    inject.links_down(given.minor, *given.links)


def _set_mig_mode(inject: Injector, given: argparse.Namespace) -> None:
    inject.set_mig_mode(given.minor, given.mode == "on", force=given.force)


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
    Event("xid", "the driver reports an XID", (GPU, CODE, GI, CI), "gpu-{minor}: XID {code}"),
    Event("lose", "the GPU falls off the bus", (GPU,), "gpu-{minor} is lost"),
    Event("answer", "the lost GPU answers again, without a reset", (GPU,), "gpu-{minor} answers again"),
    Event(
        "reset", "somebody resets the GPU: a pending MIG mode comes into effect", (GPU, FORCE), "gpu-{minor} was reset"
    ),
    Event(
        "recovery",
        "the driver asks for a recovery action",
        (GPU, ACTION),
        "gpu-{minor} wants the recovery action {action}",
        "recovery_action",
    ),
    Event("count", "errors are counted", (GPU, VALUES), "gpu-{minor} has counted {values}", _count),
    Event("measure", "temperature, power or use change", (GPU, VALUES), "gpu-{minor} measures {values}", _measure),
    Event(
        "links-down",
        "these NVLinks go down, all others up",
        (GPU, LINKS),
        "gpu-{minor}: links {links} are down",
        _links_down,
    ),
    Event(
        "process",
        "a process uses the GPU",
        (GPU, PID, *PROCESS, GI, CI),
        "process {pid} uses gpu-{minor}",
        _start_process,
    ),
    Event("process-end", "the process ends", (GPU, PID), "process {pid} no longer uses gpu-{minor}", "end_process"),
    Event(
        "mig-mode",
        "somebody switches the MIG mode, with all that it takes",
        (GPU, MODE, FORCE),
        "gpu-{minor} has its MIG mode {mode}",
        _set_mig_mode,
    ),
    Event(
        "mig-create",
        "somebody else makes a partition",
        (GPU, PROFILE, START),
        "gpu-{minor} has {profile} at {start}",
        "create_mig",
    ),
    Event(
        "mig-destroy",
        "somebody else destroys a partition",
        (GPU, START),
        "gpu-{minor} has nothing at {start} any more",
        "destroy_mig",
    ),
    Event("plug", "the GPU is put in", (GPU,), "gpu-{minor} is plugged in"),
    Event("unplug", "the GPU is taken out", (GPU,), "gpu-{minor} is taken out"),
    Event("unload-driver", "rmmod nvidia", (FORCE,), "the driver is unloaded"),
    Event("load-driver", "modprobe nvidia, of another version", (VERSION, FORCE), "the driver {version} is loaded"),
    Event(
        "restart-fabric-manager",
        "Fabric Manager is restarted, and asks which partitions are active",
        (ANEW,),
        "Fabric Manager was restarted",
    ),
    Event("reboot", "the machine restarts: all that is volatile is gone", (), "the machine was rebooted"),
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
    event.happen(reopen_simulation(state).inject, parsed)
    print(" ".join(event.says.format_map(_words(parsed)).split()))
    return 0


def _words(parsed: argparse.Namespace) -> dict[str, str]:
    return {
        name: ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
        for name, value in vars(parsed).items()
    }
