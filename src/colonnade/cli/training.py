"""Commands about a training: how to lay it out, whether it is the same function, what it did."""

import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from colonnade.cli.root import app, print_either, text_of
from colonnade.errors import InvalidArgument, Problem


@app.command()
def demo() -> None:
    """See it work: the same fit on one device and on all of them."""
    from colonnade.show.demo import demo as run_demo

    run_demo(Console())


@app.command()
def plan(
    function: Annotated[
        str | None, typer.Argument(help="A loss: module:function, from the current directory.")
    ] = None,
    devices: Annotated[int | None, typer.Option(min=1, help="How many devices may be used.")] = None,
    machine: Annotated[
        str | None, typer.Option(help="A recorded machine: article, dgx1, nvswitch, consumer or mig.")
    ] = None,
    machines: Annotated[
        int | None, typer.Option(min=1, help="How many such machines, joined by a network.")
    ] = None,
    network: Annotated[
        str | None, typer.Option(help="The rate of a machine's network adapter; 100Gb by default.")
    ] = None,
    topology: Annotated[
        Path | None,
        typer.Option(help="A machine: JSON of colonnade devices --measure, or nvidia-smi topo -m."),
    ] = None,
    workload: Annotated[
        Path | None, typer.Option(help="What a step costs, as JSON, in place of a function.")
    ] = None,
    optimizer: Annotated[
        str, typer.Option(help="The Keras optimizer to measure the function with.")
    ] = "adam",
    batch: Annotated[int, typer.Option(min=1, help="Rows, where the example is drawn at random.")] = 256,
    keep: Annotated[
        list[str] | None, typer.Option(help="A part of the plan that is settled, as name=value.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say how to train a function: on how many devices, in which layout, and why not in another."""
    from colonnade.run.plan.described import described, kept

    if (function is None) == (workload is None):
        problem = Problem("function", function, "or --workload must be given, one of them", "Try train:loss")
        raise InvalidArgument("plan", [problem])
    if network is not None and machines is None:
        rule = "joins machines, and nothing says how many there are"
        raise InvalidArgument("plan", [Problem("--network", network, rule, "Add --machines 2")])
    text = None if topology is None else text_of(topology, "colonnade plan")
    there = described(machine, machines, network or "100Gb", text, devices)
    if workload is not None:
        from colonnade.describe.workload import Workload
        from colonnade.run.plan.planning import plan as planned

        costs = Workload.from_json(text_of(workload, "colonnade plan", "--workload"))
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


@app.command()
def checkpoints(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory given to cn.Checkpoint.")],
    verify: Annotated[bool, typer.Option("--verify", help="Read every byte, and compare checksums.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the saved steps of a training; exit code 1 if one of them is damaged."""
    from colonnade.show.checkpoints import facts, look, table

    saved = look(directory, thorough=verify)
    print_either(as_json, facts(saved, thorough=verify), table(saved, thorough=verify))
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
        typer.Option("--output", "-o", metavar="FILE", help="The page; by default DIR/report.html."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Make it again every few seconds, until Ctrl-C.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Write over a file that is no page of Colonnade.")
    ] = False,
) -> None:
    """Make one HTML page of a training: curves, speed, where the time went, memory, links, saves."""
    from colonnade.show.report.report import report as make
    from colonnade.show.report.report import watch as make_again

    if not watch:
        print(make(directories, output, force=force))
        return
    try:
        for i, page in enumerate(make_again(directories, output, force=force)):
            if i == 0:
                print(f"{page}, made again every few seconds until Ctrl-C", flush=True)
    except KeyboardInterrupt:
        print()
