"""`make soak`: the long tests, in as many sittings as it takes.

    soaking.py [OPTIONS OF PYTEST...]       such as -k kills, for a part of them

Every test that ends gets a line in the ledger (`runs/soak/ledger.jsonl`, or SOAK_LEDGER; one of its own
for every COLONNADE_SOAK, which divides the numbers). Stopped or killed, the same command goes on with
what is missing; what failed is run again. Results of older code do not count, unless SOAK_ACCEPT_OLD=1
says so. `--collect-only` only tells what is to do.
"""

import multiprocessing
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import filelock
import pytest
from ledger import ROOT, Entry, Ledger, Work, digest

# A folder that is passed over is not visited by being named beside the one that it is in.
EVERYWHERE = ("-o", "norecursedirs=.*", "--ignore=tests/cards")
# The test ids, and whether nothing else may run beside one of them.
Tests = dict[str, bool]


class Collector:
    def __init__(self) -> None:
        self.tests: Tests = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            if item.get_closest_marker("long") or "soak" in item.path.relative_to(ROOT).parts:
                self.tests[item.nodeid] = item.get_closest_marker("alone") is not None


class Recorder:
    """Writes a line when a test has ended, and stops when the program that wants them is gone."""

    def __init__(self, ledger: Path, code: str) -> None:
        self.ledger, self.code, self.parent = Ledger(ledger), code, os.getppid()
        self.begun: dict[str, list[pytest.TestReport]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reports = self.begun.setdefault(report.nodeid, [])
        reports.append(report)
        # A process that dies has a report of its own kind, and no teardown.
        if report.when in ("setup", "call"):
            return
        del self.begun[report.nodeid]
        results = {one.outcome for one in reports}
        result = next((r for r in ("failed", "skipped") if r in results), "passed")
        bad = [one for one in reports if one.outcome == "failed"]
        why = str(bad[0].longrepr).strip()[-2000:] if bad else ""
        seconds = sum(one.duration for one in reports)
        figures = dict(reports[-1].user_properties)
        self.ledger.append(Entry(report.nodeid, self.code, result, round(seconds, 2), figures, why))
        if os.getppid() != self.parent:
            pytest.exit("the program that started these tests is gone", returncode=3)


def collect(options: list[str]) -> Tests:
    collector = Collector()
    arguments = ["--collect-only", "-qq", "-n", "0", "-m", "", *EVERYWHERE, "tests", *options]
    with tempfile.TemporaryFile() as out:
        screen = os.dup(1)
        os.dup2(out.fileno(), 1)  # a line for each of some thousand tests
        try:
            code = pytest.main(arguments, plugins=[collector])
            sys.stdout.flush()
        finally:
            os.dup2(screen, 1)
        out.seek(0)
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            raise SystemExit(out.read().decode())
    return collector.tests


def execute(tests: list[str], ledger: Path, code: str, options: list[str]) -> int:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as chosen:
        chosen.write("\n".join(tests))
        chosen.flush()
        arguments = ["-m", "", "--timeout", "3600", *options, f"@{chosen.name}"]
        return int(pytest.main(arguments, plugins=[Recorder(ledger, code)]))


def in_a_process(function: Any, *arguments: Any) -> Any:
    """TensorFlow is started once in a process, and pytest imports a test file once."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def told(work: Work, ledger: Path) -> None:
    print(f"{work}\nsoak: the ledger is {ledger}", flush=True)


def main(options: list[str]) -> int:
    os.chdir(ROOT)
    share = os.environ.get("COLONNADE_SOAK", "1")
    usual = "runs/soak/ledger.jsonl" if share == "1" else f"runs/soak/ledger-{share}.jsonl"
    path = Path(os.environ.get("SOAK_LEDGER", usual)).resolve()
    accept_old = os.environ.get("SOAK_ACCEPT_OLD") == "1"
    looking = "--collect-only" in options
    options = [option for option in options if option != "--collect-only"]
    path.parent.mkdir(parents=True, exist_ok=True)
    ledger, code = Ledger(path), digest()
    with filelock.FileLock(path.with_suffix(".lock"), timeout=0):
        tests = in_a_process(collect, options)
        work = ledger.work(tests, code, accept_old=accept_old)
        told(work, path)
        if looking:
            print("\n".join(work.to_do))
            return 0
        start = time.monotonic()
        try:
            for alone, how in ((False, ["-n", "2", "--dist", "worksteal"]), (True, ["-n", "0"])):
                chosen = [test for test in work.to_do if tests[test] == alone]
                if chosen and in_a_process(execute, chosen, path, code, how) == pytest.ExitCode.INTERRUPTED:
                    break
        except KeyboardInterrupt:
            print("soak: stopped")
        work = ledger.work(tests, code, accept_old=accept_old)
        print(f"soak: {(time.monotonic() - start) / 60:.1f} min in this sitting")
        told(work, path)
        for test in work.failed:
            print(f"soak: failed {test}")
    if digest() != code:
        print("soak: the code has changed meanwhile; these results are listed as those of older code")
    return 1 if work.to_do else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
