"""Commands that share the cards: a program under a lease, a sweep of settings, who has what."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from colonnade.cli.root import app

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
    machines: Annotated[
        str | None, typer.Option(metavar="A,B[:CARDS]", help="Run it on these, by ssh, as one training.")
    ] = None,
    local: Annotated[int | None, typer.Option(help="So many workers here, as if on machines.")] = None,
    private_network: Annotated[
        bool, typer.Option("--private-network", help="No stranger reaches the machines' ports.")
    ] = False,
    at_least: Annotated[int | None, typer.Option(help="So many machines are enough to start.")] = None,
    restarts: Annotated[int | None, typer.Option(help="How often to start anew; 5.")] = None,
    leases: Leases = None,
) -> None:
    """Wait for cards, and run a program on them: colonnade run --cards 2 -- python train.py

    On several machines: colonnade run --machines a,b --private-network -- python train.py

    Returns the program's exit code, 128 + n if signal n ended it, 124 if no cards came free in time.
    """
    from colonnade.fleet.launch import run as launch
    from colonnade.fleet.machines import run as launch_on_machines

    lease = {
        "cards": cards,
        "memory": memory,
        "timeout": timeout,
        "share": share,
        "virtual": virtual,
        "directory": leases,
    }
    many = (machines, local, private_network or None, at_least, restarts)
    if many == (None,) * len(many):
        code = launch(command, retries=retries, **lease)  # type: ignore[arg-type]
    else:
        code = launch_on_machines(
            command,
            machines=machines,
            local=local,
            private_network=private_network,
            at_least=at_least,
            restarts=restarts,
            retries=retries,
            lease=lease,
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
