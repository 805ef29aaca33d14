"""Command line of `pydra`: dev, new, check and the rest; those that explain a node are in `diagnosis_commands`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from pydra import __version__
from pydra.cli.diagnosis_commands import EXIT_CODES, add_diagnosis, add_output
from pydra.cli.options import WEBHOOK, Parser, add_options, read_config, read_values
from pydra.cli.output import Table, hide_tracebacks, print_errors, print_json, print_marked, print_tables
from pydra.cli.startup import check_package_conflict, exit_on_sigterm
from pydra.errors import PydraError, SettingsError
from pydra.settings import WebhookSettings, parse_webhook_settings

if TYPE_CHECKING:
    from pydra.testing import Check

_BACKEND_HELP = "an installed backend, a file (./my_fpga.py), or MODULE:ATTRIBUTE (MODULE: for the module itself)"
_DEV_CONFIG = "the agent's YAML file of settings (PYDRA_CONFIG); the agent's other variables have no effect"
_WEBHOOK_EPILOG = """\
Every option can also be given as a variable (--tls-cert as PYDRA_WEBHOOK_TLS_CERT) or in the YAML file of --config
(tlsCert: ...). A flag beats a variable, a variable beats the file. SIGHUP reads log level and certificate again.

example:
  pydra webhook --backend sim --tls-cert /tls/tls.crt --tls-key /tls/tls.key
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of `pydra` and its subcommands."""
    parser = Parser(
        prog="pydra",
        description="Write, try and look after drivers for Kubernetes Dynamic Resource Allocation.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"pydra {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an internal error")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="word", required=True)

    dev = commands.add_parser("dev", help="an embedded node with the real agent, explained as it happens")
    dev.add_argument("--backend", default="sim", metavar="NAME", help=f"{_BACKEND_HELP} [sim]")
    text = "manifests to apply instead of the sample: a file or a directory; repeat it for several"
    dev.add_argument("-f", "--filename", action="append", metavar="FILE", help=text)
    mode = dev.add_mutually_exclusive_group()
    mode.add_argument("--watch", action="store_true", help="start again when the backend or a manifest changes")
    dev.add_argument("--once", action="store_true", help="exit when the pods have ended: 0, or 1 if one failed")
    text = "call the backend in this process, once, without an agent and deadlines: for breakpoint() and debuggers"
    mode.add_argument("--in-process", action="store_true", help=text)
    text = "run the containers for real, as root, with runc or crun, on this machine's programs instead of an image"
    dev.add_argument("--run", nargs="?", const="", metavar="RUNTIME", help=text)
    text = "also show the node on a page, at a free port or at PORT or ADDRESS:PORT of this machine (loopback only)"
    dev.add_argument("--web", nargs="?", const="", metavar="ADDRESS", help=text)
    text = "how many nodes, each with an agent: what happens when one dies and another one joins [1]"
    dev.add_argument("--nodes", type=int, default=1, metavar="N", help=text)
    dev.add_argument("--quiet", action="store_true", help="of what goes well, print one line each")
    text = "how long each step may take, and the clean-up at the end [30]"
    dev.add_argument("--timeout", type=float, default=30.0, metavar="SECONDS", help=text)
    dev.add_argument("--scenario", metavar="NAME", help="a scenario of simulated hardware: a name or a file")
    text = "the Kubernetes version whose rules and feature gates the embedded node has, such as 1.34 [1.36]"
    dev.add_argument("--kubernetes", metavar="VERSION", help=text)
    dev.add_argument("--config", metavar="FILE", help=_DEV_CONFIG)
    dev.set_defaults(command=_dev)

    new = commands.add_parser(
        "new", help="write a plugin for your hardware: module, tests, packaging, manifests, image"
    )
    new.add_argument("name", metavar="NAME", help="the backend's name, such as npu: the plugin is pydra-NAME")
    new.add_argument("--directory", default="", metavar="DIR", help="where to write it [pydra-NAME]")
    text = "what the module begins with: partitions, config or health, or several with commas"
    new.add_argument("--with", default="", dest="features", metavar="FEATURES", help=text)
    new.set_defaults(command=_new)

    check = commands.add_parser("check", help="say what the agent would refuse about a backend, all problems at once")
    check.add_argument("backend", metavar="NAME", help=_BACKEND_HELP)
    check.add_argument(
        "--device", metavar="NAME", default="", help="the device to prepare, such as a partition [the first free one]"
    )
    check.add_argument(
        "--config",
        metavar="FILE",
        help="the agent's YAML file of settings: backendSettings, drivers, directories (PYDRA_CONFIG)",
    )
    add_output(check)
    check.set_defaults(command=_check)

    backends = commands.add_parser("backends", help="the installed backends")
    add_output(backends)
    backends.set_defaults(command=_backends)

    add_diagnosis(commands)
    text = 'a script that completes commands, flags and backends: eval "$(pydra completion bash)"'
    completion = commands.add_parser("completion", help=text, description=text)
    completion.add_argument("shell", metavar="SHELL", choices=("bash", "zsh"), help="bash or zsh")
    completion.set_defaults(command=_complete)
    _add_webhook(commands)
    _add_admission(commands)
    return parser


def _add_webhook(commands: argparse._SubParsersAction[Parser]) -> None:
    text = "refuse claims, templates and DeviceClasses whose opaque configs are wrong: a validating webhook"
    parser = commands.add_parser(
        "webhook",
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog=_WEBHOOK_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, WEBHOOK)
    parser.set_defaults(command=_webhook)


def _add_admission(commands: argparse._SubParsersAction[Parser]) -> None:
    policy = commands.add_parser(
        "policy", help="a ValidatingAdmissionPolicy that refuses wrong configs without a webhook"
    )
    policy.add_argument("--backend", required=True, metavar="NAME", help=_BACKEND_HELP)
    policy.add_argument("--driver", default="", metavar="DRIVER", help="the driver's name, if not the backend's own")
    policy.set_defaults(command=_policy)

    schema = commands.add_parser("schema", help="JSON Schema of a backend's configs, for editors")
    schema.add_argument("--backend", required=True, metavar="NAME", help=_BACKEND_HELP)
    schema.add_argument(
        "--kind", default="", metavar="KIND", help="one of them, such as GpuConfig; default: any of all"
    )
    schema.set_defaults(command=_schema)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    parsed = build_parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = parsed.command
    if not parsed.debug:
        hide_tracebacks("pydra")
    try:
        check_package_conflict()
        code = _call(command, parsed)
        sys.stdout.flush()
    except SettingsError as error:
        return print_errors("pydra", error.problems, code=2)
    except PydraError as error:
        return print_errors("pydra", [str(error)], code=1)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader has stopped reading, such as `head`
        _leave_stdout()
        return 128 + signal.SIGPIPE
    except OSError as error:  # such as a full disk
        _leave_stdout()
        return print_errors("pydra", [str(error)], code=1)
    return code


def _call(command: Callable[[argparse.Namespace], int], parsed: argparse.Namespace) -> int:
    """Call the command. An expected error of one of its tasks is raised as itself."""
    try:
        return command(parsed)
    except ModuleNotFoundError as error:
        return _needs_dev(parsed.word, error)
    except ExceptionGroup as group:
        expected: BaseException | None = group.subgroup((PydraError, OSError))
        if expected is None:
            raise
        while isinstance(expected, BaseExceptionGroup):
            expected = expected.exceptions[0]
        raise expected from group


def _leave_stdout() -> None:
    """Discard unwritten output: the interpreter would try to write it again at exit, and report the failure."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _needs_dev(command: str, error: ModuleNotFoundError) -> int:
    """Say what to install for a command that needs pydra-dev or what comes with it, which no node has."""
    if (error.name or "").partition(".")[0] not in ("pydra_dev", "shtab"):
        raise error
    needs = f"`pydra {command}` needs the distribution pydra-dev, which is in plugins/pydra-dev of pydra's sources"
    print(f"pydra: {needs}; install it there: pip install ./plugins/pydra-dev", file=sys.stderr)
    return 2


def _new(parsed: argparse.Namespace) -> int:
    from pydra_dev.new import write_plugin  # noqa: PLC0415

    features = tuple(filter(None, map(str.strip, parsed.features.split(","))))
    place, written = write_plugin(parsed.name, parsed.directory, features)
    for path in written:
        print(path)
    print(f"\ntry it: cd {place} && pip install -e . && pydra dev --backend {parsed.name}")
    return 0


def _dev(parsed: argparse.Namespace) -> int:
    from pydra_dev.command.backend_in_process import run as run_in_process  # noqa: PLC0415
    from pydra_dev.command.dev_command import run  # noqa: PLC0415
    from pydra_dev.command.options import Options  # noqa: PLC0415
    from pydra_dev.command.several_nodes import MOST_NODES  # noqa: PLC0415

    config = read_config(parsed.config, os.environ)
    path = parsed.config or os.environ.get("PYDRA_CONFIG")
    options = Options(
        backend=parsed.backend,
        scenario=parsed.scenario,
        manifests=tuple(parsed.filename or ()),
        config=os.path.abspath(path) if path else None,
        once=parsed.once,
        watch=parsed.watch,
        run=parsed.run,
        web=parsed.web,
        **({"kubernetes": parsed.kubernetes} if parsed.kubernetes else {}),
        deadline=parsed.timeout,
        quiet=parsed.quiet,
        nodes=parsed.nodes,
    )
    if not 0 < options.deadline < float("inf"):
        raise SettingsError([f"--timeout: {options.deadline:g} is not a number of seconds above 0"])
    if options.web is not None and (options.once or parsed.in_process):
        raise SettingsError(["--web shows a node that stays up: leave out --once and --in-process"])
    if parsed.kubernetes and parsed.in_process:
        raise SettingsError(["--kubernetes changes what the agent publishes: leave out --in-process"])
    if not 1 <= options.nodes <= MOST_NODES:
        raise SettingsError([f"--nodes: {options.nodes} is not a number from 1 to {MOST_NODES}"])
    if options.nodes > 1 and (options.web is not None or options.watch or options.run is not None or parsed.in_process):
        raise SettingsError(["--nodes shows several nodes once: leave out --web, --watch, --run and --in-process"])
    if parsed.in_process:
        return run_in_process(options, config)
    return run(options)


def _complete(parsed: argparse.Namespace) -> int:
    import shtab  # noqa: PLC0415 - comes with pydra-dev

    from pydra.backends.discovery import list_backends  # noqa: PLC0415

    parser = build_parser()
    names = [one.name for one in list_backends()]
    for action in _walk_actions(parser):
        if action.metavar in ("FILE", "DIR"):
            action.complete = shtab.FILE if action.metavar == "FILE" else shtab.DIRECTORY  # type: ignore[attr-defined]
        elif (action.help or "").startswith(_BACKEND_HELP) or action.dest == "backends":
            action.choices = names
    print(shtab.complete(parser, shell=parsed.shell))
    return 0


def _walk_actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for below in action.choices.values():
                yield from _walk_actions(below)


def _import_from(backend: str) -> str:
    """Return the name or target of a backend; the directory of one that is given as a file is put on the path."""
    from pydra.backends.discovery import locate_file  # noqa: PLC0415 - loads the types of wire messages

    target, directory = locate_file(backend)
    if directory:
        sys.path.insert(0, directory)
    return target


def _check(parsed: argparse.Namespace) -> int:
    from pydra.testing import check_backend  # noqa: PLC0415 - loads the supervisor

    config = read_config(parsed.config, os.environ)
    is_json = parsed.output == "json"
    progress = (lambda *_: None) if is_json else _print_check  # as JSON, the report follows as one document
    report = check_backend(_import_from(parsed.backend), device=parsed.device, config=config, progress=progress)
    if is_json:
        print_json({"backend": report.backend, "ok": report.ok, "checks": report.checks})
    else:
        for line in report.skipped:
            print_marked(line, "skip")
        print(report.verdict)
    return 0 if report.ok else 1


def _print_check(title: str, check: Check | None) -> None:
    """Print a check when it has been made; a terminal shows its title while it runs. What is skipped comes last."""
    running = f"...   {title}"
    if sys.stdout.isatty():
        print(running if check is None else f"\r{' ' * len(running)}\r", end="", flush=True)
    if check is not None and not check.is_folded:
        print_marked(check.text, check.mark)


def _backends(parsed: argparse.Namespace) -> int:
    from pydra.backends.discovery import list_backends  # noqa: PLC0415

    found = list_backends()
    if parsed.output == "json":
        print_json(found)
        return 0
    rows = [(entry.name, entry.distribution, entry.version, entry.target) for entry in found]
    print_tables(Table(("name", "distribution", "version", "target"), rows))
    if not found:
        print("no backend is installed; in a copy of pydra's sources: pip install ./plugins/pydra-sim", file=sys.stderr)
    return 0


def _webhook(parsed: argparse.Namespace) -> int:
    def read() -> WebhookSettings:
        return parse_webhook_settings(read_values(parsed, os.environ, WEBHOOK))

    settings = read()
    exit_on_sigterm()
    from pydra.admission.webhook import run  # noqa: PLC0415 - --help and a wrong flag cost no more than reading them

    return run(settings, reread=read)


def _policy(parsed: argparse.Namespace) -> int:
    from pydra.admission.config_types import read_backend  # noqa: PLC0415
    from pydra.admission.policy import build_policy, write_policy  # noqa: PLC0415 - for this command only

    policy = build_policy(read_backend(_import_from(parsed.backend), driver=parsed.driver))
    driver = f" --driver {parsed.driver}" if parsed.driver else ""
    print(write_policy(policy, command=f"pydra policy --backend {parsed.backend}{driver}"), end="")
    return 0


def _schema(parsed: argparse.Namespace) -> int:
    from pydra.admission.config_types import read_types  # noqa: PLC0415
    from pydra.admission.json_schema import build_schema  # noqa: PLC0415

    schema = build_schema(read_types(_import_from(parsed.backend)), kind=parsed.kind)
    print(json.dumps(schema, indent=2, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
