"""What does it cost to train in several processes, as on several machines?

python benchmarks/machines/main.py                   about twenty minutes on two cores
python benchmarks/machines/main.py --quick           three minutes: fewer sizes, models and rounds
python benchmarks/machines/main.py --parts steps     one of: sums, steps, slow-link, memory

Programs are processes of this machine. torch needs its environment: `make bench-peers`.
"""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from group import Group, Lost, Setting
from rich.console import Console
from slow_link import ADDRESSES, SlowLink, missing

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "throughput")]
from contest import Claim, Contest, Spread, table  # noqa: E402
from peers import PEERS  # noqa: E402
from players import Entry, Player  # noqa: E402
from tasks import TASKS  # noqa: E402

from colonnade.hardware.cores import cores  # noqa: E402

RANK = HERE / "tensorflow_rank.py"
MIRRORED = "MultiWorkerMirroredStrategy"
DIVIDED = f"{MIRRORED} with divided cores"
MB = 10**6
# Bytes of a sum, and how many sums a call has.
SIZES = {1 * MB: 40, 10 * MB: 8, 100 * MB: 2}
QUICK_SIZES = {1 * MB: 10}
MEGABITS, FASTER = 100, 10.0
LOST = Spread(math.inf, math.inf, math.inf)  # of a contest that Colonnade did not come to
STEPS, LEVEL = 10_000, 1.01  # steps whose memory is looked at, and what the last half may add


def sums(rounds: int, quick: bool, console: Console) -> list[Claim]:
    """Sums over 2 and 4 processes: by Colonnade, by TensorFlow's collective, by gloo, by plain sockets."""
    claims = []
    for count in (2,) if quick else (2, 4):
        kinds = {
            "Colonnade": Setting(Path(sys.executable), RANK, ("sums",), count),
            "TensorFlow": Setting(Path(sys.executable), RANK, ("tensorflow_sums",), count),
            "sockets": Setting(Path(sys.executable), HERE / "socket_rank.py", (), count),
        }
        if not PEERS["torch"].missing():
            kinds["gloo"] = Setting(PEERS["torch"].python, HERE / "torch_rank.py", (), count)
        with ExitStack() as stack:
            groups = {name: stack.enter_context(Group(setting)) for name, setting in kinds.items()}
            for size, times in (QUICK_SIZES if quick else SIZES).items():
                turns = {name: _summing(group, size, times) for name, group in groups.items()}
                contest = _held(turns, rounds, console, f"{size // MB} MB, {count} processes")
                what = f"a sum of {size // MB} MB over {count} processes, Colonnade against"
                claims += [
                    Claim(f"{what} {other}", contest.ratio("Colonnade", other, "ms"))
                    for other in groups
                    if other != "Colonnade"
                ]
    return claims


def steps(models: list[str], rounds: int, console: Console) -> list[Claim]:
    """A step on two processes with a device each, against one process with two devices, and the others."""
    claims = []
    for model in models:
        with ExitStack() as stack:
            turns: dict[str, Callable[[], float]] = {}
            for name, arguments in (
                ("colonnade", ("colonnade", model, "synchronous")),
                (MIRRORED, ("multiworker", model, "0")),
                # As many as its share of the cores, which TensorFlow does not choose by itself.
                (DIVIDED, ("multiworker", model, str(max(1, cores() // 2)))),
            ):
                try:
                    group = stack.enter_context(Group(Setting(Path(sys.executable), RANK, arguments, 2)))
                except Lost as why:
                    console.log(f"{model}: {name} is left out: {why}")
                    continue
                made = group.ready[0]["steps"]
                turns[name] = lambda group=group, made=made: group.turn("go", 1.0) / made
            if "colonnade" not in turns:
                claims.append(Claim(f"{model}: 2 processes", LOST, 1.0))
                continue
            alone = Entry(
                "one process", Path(sys.executable), HERE.parent / "throughput" / "contender.py",
                ("colonnade", model, "2"),
            )  # fmt: skip
            others = [alone]
            if not PEERS["torch"].missing():
                program = HERE.parent / "throughput" / "torch_contender.py"
                others.append(Entry("torch DDP", PEERS["torch"].python, program, ("ddp", model, "2")))
            for entry in others:
                player = stack.enter_context(_playing(entry))
                turns[entry.name] = lambda player=player: player.turn(1.0, 180)["step"] / 1000
            contest = _held(turns, rounds, console, model)
            medians = {
                name: contest.spread(name, "ms").median for name in (MIRRORED, DIVIDED) if name in turns
            }
            worse = [name for name in medians if name != min(medians, key=lambda name: medians[name])]
            for other in [name for name in turns if name not in ("colonnade", *worse)]:
                ratio = contest.ratio("colonnade", other, "ms")
                claims.append(Claim(f"{model}: 2 processes against {other}", ratio, 1.0))
    return claims


def slow_link(rounds: int, quick: bool, console: Console) -> list[Claim]:
    """DiLoCo in single bytes against synchronous training, over a slow link."""
    if why := missing():
        console.log(f"without the slow link: {why}")
        return []
    with SlowLink(MEGABITS) as link, ExitStack() as stack:
        turns = {}
        for mode in ("synchronous", "diloco"):
            setting = Setting(
                Path(sys.executable), RANK, ("colonnade", "mlp", mode), 2, ADDRESSES, link.inside,
                {"COLONNADE_PRIVATE_NETWORK": "1"},
            )  # fmt: skip
            group = stack.enter_context(Group(setting, patience=300))
            made = group.ready[0]["steps"]
            turns[mode] = lambda group=group, made=made: group.turn("go", 1.0) / made
        contest = _held(turns, 1 if quick else min(rounds, 3), console, "slow link")
    ratio = contest.ratio("diloco", "synchronous", "ms")
    what = f"mlp over {MEGABITS} Mbit/s: a step of DiLoCo(20, compress='int8') against synchronous"
    return [Claim(what, ratio, 1 / FASTER)]


def memory(quick: bool, console: Console) -> list[Claim]:
    """Whether a long training takes more and more memory."""
    setting = Setting(Path(sys.executable), RANK, ("colonnade", "polynomial", "synchronous"), 2)
    with Group(setting) as group:
        made = group.ready[0]["steps"]
        taken = [group.call("go")[1] for _ in range((1000 if quick else STEPS) // made)]
    by_program = list(zip(*([one["memory"] for one in answers] for answers in taken), strict=True))
    middle = len(taken) // 2
    console.log([[round(taken / 2**20, 1) for taken in own[:: max(1, len(own) // 10)]] for own in by_program])
    contest = Contest()
    contest.rounds = {
        "end": [{"bytes": own[-1]} for own in by_program],
        "middle": [{"bytes": own[middle]} for own in by_program],
    }
    what = f"memory of each process after {len(taken) * made} steps against the half of them"
    return [Claim(what, contest.ratio("end", "middle", "bytes"), LEVEL)]


def _summing(group: Group, size: int, times: int) -> Callable[[], float]:
    """A turn of sums: seconds of one."""
    return lambda: group.turn(f"{size} {times}", 0.5) / times


@contextmanager
def _playing(entry: Entry) -> Iterator[Player]:
    player = Player(entry)
    player.imported(180)
    player.begin(180)
    try:
        yield player
    finally:
        player.end()


def _held(turns: dict[str, Callable[[], float]], rounds: int, console: Console, title: str) -> Contest:
    """Everybody has a turn in each round, in the other direction every other round."""
    contest = Contest()
    for number in range(rounds):
        for name in list(turns)[:: -1 if number % 2 else 1]:
            milliseconds = 1000 * turns[name]()
            contest.rounds.setdefault(name, []).append({"ms": milliseconds})
        last: dict[str, Any] = {name: round(rows[-1]["ms"], 2) for name, rows in contest.rounds.items()}
        console.log(f"{title}: round {number + 1} of {rounds}, ms: {last}", highlight=False)
    return contest


def main(
    parts: Annotated[str, typer.Option(help="Which, with commas.")] = "sums,steps,slow-link,memory",
    models: Annotated[str | None, typer.Option(help="Models of `steps`, with commas.")] = None,
    rounds: Annotated[int, typer.Option(help="In each, every contender has a turn.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer of everything.")] = False,
) -> None:
    """Hold the contests and say which limits are met."""
    console = Console(width=130)
    rounds = 2 if quick else rounds
    chosen = models.split(",") if models else ["polynomial", "mlp"] if quick else list(TASKS)
    if unknown := [name for name in chosen if name not in TASKS]:
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}; there are {', '.join(TASKS)}")
    known = {
        "sums": lambda: sums(rounds, quick, console),
        "steps": lambda: steps(chosen, rounds, console),
        "slow-link": lambda: slow_link(rounds, quick, console),
        "memory": lambda: memory(quick, console),
    }
    asked = parts.split(",")
    if unknown := [part for part in asked if part not in known]:
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    if PEERS["torch"].missing():
        console.print("Without torch, whose rows are left out: `make bench-peers`.")
    claims = [claim for part in asked for claim in known[part]()]
    console.print(table("Ratios of times (of memory, where it says so); lower is better", claims))
    if any(claim.ratio == LOST for claim in claims):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
