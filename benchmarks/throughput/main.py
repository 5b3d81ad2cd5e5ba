"""How fast the trainer is, against all that a user could take instead, each at its best setting.

main.py                                  half an hour on two cores
main.py --quick                          five minutes: four models, 2 devices, two short rounds
main.py --models cnn --devices 2,32      these contests only
main.py --who colonnade,mirrored         these contenders only
main.py --write                          no contest: tables and picture from the results that are there

What was measured goes to results.json beside this file, contest by contest; tables are made from all that is
there, so contests can be held at different times.
"""

import os
import platform
import sys
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import report  # noqa: E402
from claims import claims  # noqa: E402
from contest import Contender, Contest  # noqa: E402
from peers import PEERS, ROOT, WrongPeer  # noqa: E402
from players import Entry, play  # noqa: E402
from results import MODELS, Results  # noqa: E402

DEVICES = (2, 8, 32)
QUICK = ("polynomial", "mlp", "cifar", "transformer")
# Devices at which a contender takes part. Towers by hand and a process per device of torch get slow to start
# beyond 8; those with one device have the contest of two as theirs.
PARTS = {
    "colonnade": (2, 8, 32),
    "mirrored": (2, 8, 32),
    "towers": (2, 8),
    "session": (2,),
    "ddp": (2, 8),
    "sharded": (2, 8, 32),
    "single": (2,),
    "torch": (2,),
    "jax": (2,),
}
ONE_DEVICE = ("single", "torch", "jax")
PROGRAMS = {"ddp": "torch", "torch": "torch", "sharded": "jax", "jax": "jax"}
SECONDS = 0.6  # a turn
UPDATES = ("asynchronous", "weight", "3")  # the contender of benchmarks/modes that counts updates
PATIENCE = {2: 180.0, 8: 300.0, 32: 600.0}  # seconds, for a contender to be ready and for a turn


def entries(model: str, devices: int, peers: set[str], who: list[str]) -> list[Entry]:
    """Who takes part in a contest."""
    found = []
    for name in who:
        peer = PROGRAMS.get(name)
        if devices not in PARTS[name] or (peer and peer not in peers):
            continue
        count = "1" if name in ONE_DEVICE else str(devices)
        python = PEERS[peer].python if peer else Path(sys.executable)
        program = HERE / (f"{peer}_contender.py" if peer else "contender.py")
        found.append(Entry(name, python, program, (name, model, count)))
    return found


def others(results: Results, path: Path, repeats: int, quick: bool, console: Console) -> None:
    """Updates of one weight, and fits with a checkpoint: each process is a round by itself."""
    programs = {"updates": [Contender("asynchronous", HERE.parent / "modes" / "contender.py", UPDATES)]}
    saving = HERE.parent / "checkpoint" / "contender.py"
    steps = "120" if quick else "400"
    for model in ("mlp", "deep"):
        kinds = ("every", "never")
        made = [Contender(kind, saving, (model, kind, steps, "100")) for kind in kinds]
        programs[f"checkpoint {model}"] = made
    hold(results, path, programs, repeats, console)


def further(results: Results, path: Path, repeats: int, console: Console) -> None:
    """A large model with one set of variables on 1 and 8 devices, and with 8 sets; and input that is late."""
    kinds = (("memory", 1), ("memory", 8), ("copies", 8))
    large = [Contender(f"{n} {c}", HERE / "contender.py", (n, "large", str(c))) for n, c in kinds]
    late = [Contender("fed", HERE / "contender.py", ("fed", "cnn", "2"))]
    hold(results, path, {"memory": large, "input": late}, repeats, console)


def hold(
    results: Results, path: Path, programs: dict[str, list[Contender]], repeats: int, console: Console
) -> None:
    for name, made in programs.items():
        contest = Contest()
        contest.hold(made, repeats, lambda line, name=name: console.log(f"{name}: {line}"))
        results.contests[name] = contest.rounds
        results.save(path)


def able(console: Console) -> set[str]:
    """The peers that have an environment; of the others it says so."""
    try:
        missing = {name for name, peer in PEERS.items() if peer.missing()}
    except WrongPeer as wrong:
        raise typer.BadParameter(str(wrong)) from None
    if missing:
        console.print(
            f"Without {' and '.join(sorted(missing))}, whose columns are left out: `make bench-peers`."
        )
    return set(PEERS) - missing


def chosen(text: str | None, every: tuple[str, ...]) -> list[str]:
    names = text.split(",") if text else list(every)
    if unknown := [name for name in names if name not in every]:
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}; there are {', '.join(every)}")
    return names


def machine(peers: set[str]) -> dict[str, object]:
    packages = {}
    for name in ("tensorflow", "tensorflow-cpu", "keras"):
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    packages |= {name: pin for peer in sorted(peers) for name, pin in PEERS[peer].wanted().items()}
    return {"cores": os.cpu_count(), "processor": platform.machine(), "versions": packages}


def main(
    quick: Annotated[
        bool, typer.Option("--quick", help="Four models on 2 devices, two short rounds.")
    ] = False,
    models: Annotated[str | None, typer.Option(help="Some of the models, with commas.")] = None,
    devices: Annotated[str | None, typer.Option(help="Some numbers of devices, with commas.")] = None,
    who: Annotated[str | None, typer.Option(help="Some of the contenders, with commas.")] = None,
    repeats: Annotated[int, typer.Option(help="Rounds; in each, every contender has a turn.")] = 5,
    memory: Annotated[
        bool, typer.Option("--memory", help="Also the memory of copies, and late input.")
    ] = False,
    rest: Annotated[bool, typer.Option(help="Also asynchronous updates and fits with a checkpoint.")] = True,
    results: Annotated[Path | None, typer.Option(help="Where results are kept.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Hold nothing: tables and picture only.")] = False,
) -> None:
    """Hold the contests and say which targets are met."""
    console = Console(width=160)
    path = results or (HERE / ("quick.json" if quick else "results.json"))
    known = Results.load(path)
    if not write:
        begun = time.monotonic()
        peers = able(console)
        known.machine = machine(peers)
        repeats, seconds = (2, 0.3) if quick else (repeats, SECONDS)
        for count in map(int, chosen(devices, ("2",) if quick and not devices else tuple(map(str, DEVICES)))):
            for model in chosen(models, QUICK if quick and not models else MODELS):
                name = f"{model} {count}"
                told = lambda line, name=name: console.log(f"{name}: {line}", highlight=False)  # noqa: E731
                taking_part = entries(model, count, peers, chosen(who, tuple(PARTS)))
                held = play(taking_part, repeats, seconds, PATIENCE[count], told)
                known.contests[name], known.settings[name], known.lost[name] = held
                known.save(path)
        if rest and not quick:
            others(known, path, min(repeats, 3), quick, console)
        if memory:
            further(known, path, min(repeats, 2), console)
        console.print(f"{(time.monotonic() - begun) / 60:.0f} minutes; all figures are in {path}")
    if results is None and not quick:
        report.put(HERE / "README.md", report.whole(known))
        report.put(ROOT / "README.md", report.short(known))
        report.picture(known, ROOT / "docs" / "contest.png")
    console.print(report.whole(known), highlight=False, markup=False)
    short = [claim for claim in claims(known) if claim.verdict == "FALLS SHORT"]
    console.print(f"{len(short)} of {sum(c.rule is not None for c in claims(known))} targets FALL SHORT.")


if __name__ == "__main__":
    typer.run(main)
