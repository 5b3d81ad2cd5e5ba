"""Commands about this machine: what it has, whether it is in order, whether it computes rightly."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colonnade.cli.root import app, print_either, text_of
from colonnade.errors import InvalidArgument, Problem

if TYPE_CHECKING:
    from colonnade.hardware.cards import Machine


@app.command()
def devices(
    topology: Annotated[
        Path | None,
        typer.Option(
            help="Draw the links that `nvidia-smi topo -m` printed into this file (- for standard input)."
        ),
    ] = None,
    machine: Annotated[
        str | None, typer.Option(help="Show a recorded machine: article, dgx1, nvswitch, consumer or mig.")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure matrix products and copies, for colonnade plan.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the devices of this machine, who uses them, and the links between them."""
    from colonnade.describe.topology import Topology
    from colonnade.show import machine as show

    if measure:
        if topology is not None or machine is not None:
            problem = Problem("--measure", True, "is for this machine", "Leave --topology and --machine out")
            raise InvalidArgument("colonnade devices", [problem])
        from colonnade.hardware.probes.measure import measured

        figures = measured(_machine(None))
        print_either(as_json, json.loads(figures.to_json()), show.figures(figures))
        return
    if topology is not None:
        pasted = Topology.from_text(text_of(topology))
        print_either(as_json, json.loads(pasted.to_json()), show.links(pasted))
    else:
        described = _machine(machine)
        here = machine is None
        print_either(as_json, show.facts(described, here=here), show.screen(described, here=here))


@app.command()
def doctor(
    machine: Annotated[
        str | None,
        typer.Option(
            help="Look at the cards of a recorded machine: article, dgx1, nvswitch, consumer or mig."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check this machine; exit code 1 if something keeps work from starting."""
    from colonnade.hardware.doctors.doctor import examine, examine_cards
    from colonnade.hardware.probes.probe import probe
    from colonnade.show.doctor import report

    described = _machine(machine)
    findings = examine(described, probe()) if machine is None else examine_cards(described, {})
    print_either(as_json, [asdict(finding) for finding in findings], report(findings))
    if any(finding.state == "blocks" for finding in findings):
        raise typer.Exit(1)


@app.command()
def selftest(
    devices: Annotated[
        int | None, typer.Option(help="How many cards, or virtual devices where there are no cards.")
    ] = None,
    bundle: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the results here, to attach to a report.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check that all devices compute what one does; exit code 1 if something does not."""
    to_output = bundle is not None and _check_writable(bundle)
    from colonnade.run.selftest.report import bundle as bundled
    from colonnade.run.selftest.selftest import CHECKS, examine, start
    from colonnade.show.selftest import followed, report

    names = start(devices)
    results = tuple(followed(examine(names), [check.name for check in CHECKS]))
    plain = bundled(names, results)
    if bundle is not None and not to_output:
        try:
            bundle.write_text(json.dumps(plain, indent=2) + "\n")
        except OSError as error:
            raise _unwritable(bundle, error.strerror) from None
    print_either(as_json or to_output, plain, report(results))
    if any(result.state == "failed" for result in results):
        raise typer.Exit(1)


def _check_writable(path: Path) -> bool:
    """Before a minute of work, and not after it; whether it is the standard output, as /dev/stdout is."""
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise _unwritable(path, "a folder, or not open to you")
    return path.exists() and os.path.samestat(path.stat(), os.fstat(1))


def _unwritable(path: Path, why: str | None) -> InvalidArgument:
    problem = Problem("--bundle", str(path), f"cannot be written ({why})", "Name a file in a folder of yours")
    return InvalidArgument("colonnade selftest", [problem])


def _machine(name: str | None) -> "Machine":
    from colonnade.hardware.cards import detect
    from colonnade.hardware.recorded import recorded

    if name is None:
        return detect()
    fake = recorded(name)
    return detect(fake, fake.owner)
