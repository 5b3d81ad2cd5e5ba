"""The table of faults in docs/reliability.md, from the ledger of `make soak`: fault_table.py LEDGER

Of each fault how often it was met, and in seconds after it the median and the longest time until the others
noticed, until all had ended, and until the training went on.
"""

import statistics
import sys
from collections import defaultdict
from pathlib import Path

from ledger import Entry, Ledger

TEST = "tests/soak/test_machines.py::test_a_training_survives_all_faults"
COLUMNS = ("noticed", "ended", "training")


def table(entries: list[Entry]) -> str:
    latest = {entry.test: entry for entry in entries if entry.test.startswith(TEST) and entry.good}
    met: dict[str, list[dict[str, float]]] = defaultdict(list)
    for entry in latest.values():
        for fault, times in entry.figures.items():
            met[fault].append(times)
    lines = ["| fault | times | noticed | all had ended | trained on |", "|---|---|---|---|---|"]
    for fault, every in sorted(met.items()):
        cells = [_cell([times[column] for times in every if column in times]) for column in COLUMNS]
        lines.append(f"| {fault} | {len(every)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.1f}, at most {max(seconds):.1f}" if seconds else "-"


if __name__ == "__main__":
    print(table(Ledger(Path(sys.argv[1])).entries()))
