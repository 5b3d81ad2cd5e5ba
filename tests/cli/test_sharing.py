import json
import re
import sys

from fresh import COMMAND, run


def test_run_and_leases(tmp_path):
    leases = str(tmp_path / "leases")
    show = [sys.executable, COMMAND, "leases", "--leases", leases]
    options = ["--virtual", "2", "--cards", "1", "--memory", "0.5", "--leases", leases]
    # Options after the program's name are the program's.
    done = run([COMMAND, "run", *options, *show, "--json"])
    (lease,) = json.loads(done.stdout)
    assert lease["cards"] == ["virtual:0"]
    assert (lease["memory"], lease["waits_for"], lease["command"]) == (0.5, 0, [*show, "--json"])
    table = run([COMMAND, "run", *options, "--", *show], COLUMNS="200").stdout
    assert re.search(r"virtual:0 +│ +50% │", table)
    assert "No card is leased" in run(show).stdout
    assert json.loads(run([*show, "--json"]).stdout) == []


def test_a_bad_run_is_one_message_and_exit_code_2(tmp_path):
    done = run([COMMAND, "run", "--virtual", "2", "--cards", "3", "--memory", "7", "--", "no-such-program"])
    assert done.returncode == 2
    assert [line.split("=")[0].strip() for line in done.stderr.splitlines()[1:]] == [
        "command",
        "--cards",
        "--memory",
    ]
    assert "Traceback" not in done.stderr
