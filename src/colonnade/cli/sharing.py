"""Commands that share the cards: a program under a lease, a sweep of settings, who has what."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from colonnade.cli.root import app

Leases = Annotated[
    Path | None,
    typer.Option(
        "--leases", metavar="DIR", help="Where the leases are; by default where COLONNADE_LEASES says."
    ),
]


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(help="The program and its arguments, after --.")],
    cards: Annotated[
        int | None, typer.Option(help="How many cards to lease; by default 1, or all virtual ones.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="The share of each card, such as 0.5; by default all of it.")
    ] = None,
    timeout: Annotated[str | None, typer.Option(help="How long to wait for cards: 90s, 1h30m.")] = None,
    share: Annotated[
        bool, typer.Option("--share", help="Also take cards that somebody uses without a lease.")
    ] = False,
    retries: Annotated[int, typer.Option(help="How often to start again after exit code 75.")] = 0,
    virtual: Annotated[
        int | None, typer.Option(help="Lease from this many virtual cards, not real ones.")
    ] = None,
    machines: Annotated[
        str | None,
        typer.Option(metavar="A,B[:CARDS]", help="Run it on these machines, by ssh, as one training."),
    ] = None,
    local: Annotated[
        int | None, typer.Option(help="Start this many workers here, as if each were a machine.")
    ] = None,
    private_network: Annotated[
        bool,
        typer.Option(
            "--private-network", help="You say that no stranger reaches the ports of these machines."
        ),
    ] = False,
    at_least: Annotated[
        int | None,
        typer.Option(help="How many machines are enough; by default all at first, and one at a restart."),
    ] = None,
    restarts: Annotated[
        int | None, typer.Option(help="How often to start anew on machines; 5 by default.")
    ] = None,
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
    trials: Annotated[int | None, typer.Option(help="How many in all; by default all of a grid.")] = None,
    cards: Annotated[int, typer.Option(help="How many cards a trial gets.")] = 1,
    memory: Annotated[str, typer.Option(help="The share of each card, such as 0.5.")] = "1",
    virtual: Annotated[int | None, typer.Option(help="Use this many virtual cards, not real ones.")] = None,
    direction: Annotated[str, typer.Option(help="minimize or maximize.")] = "minimize",
    timeout: Annotated[str | None, typer.Option(help="End the sweep after this time: 90s, 2h.")] = None,
    study: Annotated[str | None, typer.Option(metavar="NAME", help="The study's name.")] = None,
    storage: Annotated[
        str | None, typer.Option(metavar="URL", help="Where the study is kept, for several machines.")
    ] = None,
    sampler: Annotated[
        str | None, typer.Option(help="How settings are chosen: tpe, random, qmc, cmaes or gp.")
    ] = None,
    pruner: Annotated[
        str, typer.Option(help="What ends bad trials early: median, hyperband, halving or none.")
    ] = "median",
    seed: Annotated[int | None, typer.Option(help="The same seed draws the same settings.")] = None,
    grid: Annotated[
        list[str] | None, typer.Option(metavar="NAME=V,V", help="Try each of these values of {NAME}.")
    ] = None,
    range_: Annotated[
        list[str] | None,
        typer.Option("--range", metavar="NAME=A..B[:log]", help="Draw {NAME} from this range."),
    ] = None,
    fix: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=V", help="Run the objective once, with these parameters."),
    ] = None,
    retries: Annotated[int, typer.Option(help="How often to try a trial again that was killed or hung.")] = 0,
    stall: Annotated[
        str | None, typer.Option(help="Minutes, or 90s, without a sign after which a trial hangs.")
    ] = None,
    reuse: Annotated[bool, typer.Option("--reuse", help="One process for many trials.")] = False,
    share: Annotated[
        bool, typer.Option("--share", help="Also take cards that somebody uses without a lease.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the folders of studies are; by default ./studies."),
    ] = None,
    leases: Leases = None,
) -> None:
    """Try many settings, one on each card: of an Optuna objective, or of any program.

    colonnade sweep train:objective --trials 50

    colonnade sweep --grid rate=0.1,0.01 -- python train.py --rate {rate}

    The same command again goes on. Exit code 75: stopped. 1: no trial is complete, or one of a grid failed.
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
