"""Commands of `pydra` that explain and repair a node: doctor, explain, slices, checkpoint, cdi."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from pydra.cli.options import NODE_TOOL, Parser, add_options, read_node_settings
from pydra.cli.output import Table, print_findings, print_json, print_tables
from pydra.diagnosis import Finding, has_problems
from pydra.errors import ClaimError, SettingsError
from pydra.message_text import list_names

if TYPE_CHECKING:
    from pydra.diagnosis.cluster_reader import EventLine
    from pydra.diagnosis.doctor import Examination
    from pydra.diagnosis.explain import ClaimReport, Judgements, PodReport, Review
    from pydra.diagnosis.held_claims import ClaimRecord
    from pydra.diagnosis.slice_report import SliceReport

EXIT_CODES = """\
exit codes:
  0   nothing is wrong
  1   something is wrong or could not be read; the output says what
  2   invalid arguments
"""
_NODE_EPILOG = f"""\
The settings are those of the agent: its flags, PYDRA_... variables and the file of PYDRA_CONFIG. In an agent's pod they
are there: kubectl -n pydra exec POD -- pydra ...

{EXIT_CODES}"""

_EVENTS = 10
"""The last ones are printed; `-o json` has all."""

Commands = Any  # argparse's type of subcommands is private, and generic only for a type checker


def add_diagnosis(commands: Commands) -> None:
    """Add the commands to those of `pydra`."""
    _add(commands, "doctor", "what is wrong with this node and its agent, and what to do", _examine)
    _add_explain(commands)
    _add_slices(commands)
    _add_checkpoint(commands)
    _add_cdi(commands)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add `-o`, which every command that lists something has."""
    text = "table, or json for programs [table]"
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", metavar="FORMAT", help=text)


def _add(
    commands: Commands, name: str, text: str, run: Callable[[argparse.Namespace], int], *, of_node: bool = True
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog=_NODE_EPILOG if of_node else EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_output(parser)
    if of_node:
        add_options(parser, NODE_TOOL)
    parser.set_defaults(command=run)
    return parser


def _print(parsed: argparse.Namespace, value: Any, show: Callable[[Any], None], findings: Sequence[Finding]) -> int:
    """Print the value, as JSON or with `show`; return the exit code that follows from the findings in it."""
    (print_json if parsed.output == "json" else show)(value)
    return 1 if has_problems(findings) else 0


# The node


def _examine(parsed: argparse.Namespace) -> int:
    from pydra.diagnosis.doctor import examine_node  # noqa: PLC0415 - loads the agent

    found = asyncio.run(examine_node(read_node_settings(parsed, os.environ)))
    return _print(parsed, found, _print_examination, found.findings)


def _print_examination(found: Examination) -> None:
    print(f"node {found.node}\n")
    print_findings(found.findings)


# What is in the cluster


def _add_explain(commands: Commands) -> None:
    text = "explain the state of an object"
    below = commands.add_parser("explain", help=text, description=f"{text.capitalize()}.")
    below = below.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    text = "whether a claim is allocated and prepared, by which slices and files, and what went wrong last"
    claim = _add(below, "claim", text, _explain_claim)
    pod = _add(below, "pod", "how each claim of a pod is, and which of them are missing", _explain_pod)
    for parser, kind in ((claim, "claim"), (pod, "pod")):
        parser.add_argument("object", metavar=kind.upper(), help="NAMESPACE/NAME, or NAME")
        parser.add_argument("-n", "--namespace", default="default", metavar="NAMESPACE", help="that of NAME [default]")


def _explain_claim(parsed: argparse.Namespace) -> int:
    from pydra.diagnosis.explain import explain_claim  # noqa: PLC0415 - loads the agent

    report: ClaimReport = _explain(parsed, "claim", explain_claim)
    return _print(parsed, report, _print_claim, report.findings)


def _explain_pod(parsed: argparse.Namespace) -> int:
    from pydra.diagnosis.explain import explain_pod  # noqa: PLC0415 - loads the agent

    report: PodReport = _explain(parsed, "pod", explain_pod)
    findings = [*report.findings, *(finding for one in report.claims for finding in one.findings)]
    return _print(parsed, report, _print_pod, findings)


def _print_pod(report: PodReport) -> None:
    print(f"pod {report.pod}, claims: {len(report.claims)}\n")
    print_findings(report.findings)
    for number, one in enumerate(report.claims):
        print("\n" if number or report.findings else "", end="")
        _print_claim(one)


def _explain(parsed: argparse.Namespace, kind: str, explain: Callable[..., Awaitable[Any]]) -> Any:
    """Return what `explain` reports of the object that the arguments name."""
    from pydra.claim import find_name_problem  # noqa: PLC0415
    from pydra.diagnosis.cluster_reader import open_cluster  # noqa: PLC0415

    settings = read_node_settings(parsed, os.environ)
    namespace, _, name = parsed.object.rpartition("/")
    namespace = namespace or parsed.namespace
    if problem := find_name_problem("uid", namespace, name):
        raise SettingsError([f"{parsed.object!r} names a {kind} {problem}"])

    async def run() -> Any:
        async with open_cluster(settings) as client:
            return await explain(settings, client, namespace=namespace, name=name, review=_load_review())

    return asyncio.run(run())


def _print_claim(report: ClaimReport) -> None:
    print(f"claim {report.claim}{f' (uid {report.uid})' if report.uid else ''}\n")
    print_findings(report.findings)
    devices = [
        (one.request, one.driver, one.pool, one.device, one.slice or "none", ",".join(one.taints), ",".join(one.cdi))
        for one in report.devices
    ]
    columns = ("request", "driver", "pool", "device", "slice", "taints", "CDI")
    reviews = [(one.request, one.node, list_names(one.devices), one.reason or "available") for one in report.reviews]
    print_tables(
        Table(columns, devices, "devices:"),
        Table(("request", "node", "devices", "why not"), reviews, "what a scheduler would find now:"),
        _build_events(report.events),
    )


def _load_review() -> Review | None:
    """Return the judgement of the scheduler in pydra-dev, if that is installed."""
    try:
        from pydra_dev.api.errors import StatusError  # noqa: PLC0415
        from pydra_dev.scheduler.allocator import AllocationError  # noqa: PLC0415 - a distribution of its own
        from pydra_dev.scheduler.scheduler import review_objects  # noqa: PLC0415
    except ModuleNotFoundError:
        return None

    def review(claim: dict[str, Any], **objects: Any) -> Judgements:
        try:
            return review_objects(claim, **objects)
        except (AllocationError, StatusError) as error:
            raise ClaimError(str(error)) from error

    return review


def _add_slices(commands: Commands) -> None:
    slices = _add(commands, "slices", "what a node publishes, and why a device is tainted or absent", _report_slices)
    slices.add_argument("--all-nodes", action="store_true", help="all nodes, also those that publish nothing")


def _report_slices(parsed: argparse.Namespace) -> int:
    from pydra.diagnosis.cluster_reader import open_cluster  # noqa: PLC0415 - loads the client
    from pydra.diagnosis.slice_report import report_slices  # noqa: PLC0415

    settings = read_node_settings(parsed, os.environ)

    async def run() -> SliceReport:
        async with open_cluster(settings) as client:
            return await report_slices(client, "" if parsed.all_nodes else settings.node_name)

    report = asyncio.run(run())
    return _print(parsed, report, _print_slices, report.findings)


def _print_slices(report: SliceReport) -> None:
    print_findings(report.findings)
    rows = [
        (one.driver, one.pool, one.device, one.slice, ",".join(one.taints), ",".join(one.claims))
        for one in report.devices
    ]
    columns = ("driver", "pool", "device", "slice", "taints", "claims")
    print_tables(Table(columns, rows, "devices:"), _build_events(report.events))


def _build_events(events: Sequence[EventLine]) -> Table:
    rows = [(one.time[:19], one.type, one.reason, f"{one.count}x", one.object, one.note) for one in events[-_EVENTS:]]
    return Table(("time", "type", "reason", "seen", "about", "note"), rows, "last Events:")


# Records


def _add_checkpoint(commands: Commands) -> None:
    text = "the records of the claims that this node holds"
    below = commands.add_parser("checkpoint", help=text, description=f"{text[0].upper()}{text[1:]}.")
    below = below.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    listing = _add(below, "list", "each record: its claim, stage and devices", _list_records)
    show = _add(below, "show", "all that the record of a claim says", _show_record)
    show.add_argument("claim", metavar="CLAIM", help="NAMESPACE/NAME, or the claim's uid")
    repair = _add(below, "repair", "use records again that can be read again, and name those that cannot", _repair)
    text = "remove the unreadable record of this claim, whose devices are free then; its pods must not run any more"
    repair.add_argument("--discard", default="", metavar="UID", help=text)
    for parser in (listing, show, repair):
        parser.add_argument("--only", default="", metavar="DRIVER", help="only the records of this driver")


def _list_records(parsed: argparse.Namespace) -> int:
    from pydra.diagnosis.held_claims import read_records  # noqa: PLC0415 - loads the agent

    records = read_records(read_node_settings(parsed, os.environ), driver=parsed.only)
    if parsed.output == "json":
        print_json([_summarise(record) for record in records])
    elif not records:
        print("this node holds no claims")
    else:
        rows = [
            (one["driver"], one["claim"], one["uid"], one["stage"], ",".join(one["devices"]), one["age"])
            for one in map(_summarise, records)
        ]
        print_tables(Table(("driver", "claim", "uid", "stage", "devices", "age"), rows))
    _print_unreadable(records, parsed)
    return 1 if any(record.stored.problem for record in records) else 0


def _summarise(record: ClaimRecord) -> dict[str, Any]:
    claim, kept = record.claim, record.stored.record
    return {
        "driver": record.driver,
        "claim": f"{claim.namespace}/{claim.name}" if claim.name else "",
        "uid": claim.uid,
        "stage": record.stage,
        "devices": sorted({device.device for device in claim.devices}),
        "age": _format_age(kept.created) if kept is not None else "",
        "created": kept.created if kept is not None else None,
        "path": record.stored.path,
        "problem": record.stored.problem,
    }


def _print_unreadable(records: Sequence[ClaimRecord], parsed: argparse.Namespace) -> None:
    if parsed.output == "table":
        for record in records:
            if record.stored.problem:
                print(f"{record.stored.path}: {record.stored.problem}; see: pydra checkpoint repair")


def _show_record(parsed: argparse.Namespace) -> int:
    from pydra.diagnosis.held_claims import choose_records, read_records  # noqa: PLC0415 - loads the agent

    records = choose_records(read_records(read_node_settings(parsed, os.environ), driver=parsed.only), parsed.claim)
    # A record is a document: there is no better table of it than its JSON, below its path.
    if parsed.output == "json":
        print_json([{"path": one.stored.path, "record": one.stored.record or one.stored.claim} for one in records])
    else:
        for one in records:
            print(f"# {one.stored.path}{f': {one.stored.problem}' if one.stored.problem else ''}")
            print_json(one.stored.record or one.stored.claim)
    return 1 if any(one.stored.problem for one in records) else 0


def _repair(parsed: argparse.Namespace) -> int:
    from pydra.diagnosis.held_claims import repair_records  # noqa: PLC0415 - loads the agent

    settings = read_node_settings(parsed, os.environ)
    findings = asyncio.run(repair_records(settings, driver=parsed.only, discard=parsed.discard))
    if not findings and parsed.output == "table":
        print("this node holds no claims")
        return 0
    return _print(parsed, findings, print_findings, findings)


def _format_age(created: float) -> str:
    """Format the time since `created` (seconds since the epoch) as kubectl does: 40s, 12m, 5h, 3d."""
    seconds = max(0.0, time.time() - created)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


# CDI


def _add_cdi(commands: Commands) -> None:
    text = "CDI spec files, which tell a container runtime what a device changes in a container"
    below = commands.add_parser("cdi", help=text, description=f"{text}.")
    below = below.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    text = "say why a container runtime would refuse a CDI spec file"
    validate = _add(below, "validate", text, _validate_spec, of_node=False)
    validate.add_argument("files", nargs="+", metavar="FILE", help="a file, .json or .yaml, of any driver")


def _validate_spec(parsed: argparse.Namespace) -> int:
    from pydra.diagnosis.cdi_validation import check_spec_file  # noqa: PLC0415 - loads the rules of CDI

    findings = [finding for file in parsed.files for finding in check_spec_file(file)]
    return _print(parsed, findings, print_findings, findings)
