import json
import re

from fresh import COMMAND, run

import colonnade as cn


def test_devices():
    assert "cores" in run([COMMAND, "devices"]).stdout
    facts = json.loads(run([COMMAND, "devices", "--json"]).stdout)
    assert facts["cpu"]["cores"] >= 1
    assert isinstance(facts["cards"], list)


def test_devices_of_a_recorded_machine():
    shown = run([COMMAND, "devices", "--machine", "dgx1"]).stdout
    assert re.search(r"0 +X +NV1 +NV1 +NV2 +NV2 +SYS! +SYS! +SYS!", shown)
    assert re.search(r"card 3 +21002 +grace +14\.0 GiB", shown)
    assert "no peer access" in shown
    facts = json.loads(run([COMMAND, "devices", "--machine", "mig", "--json"]).stdout)
    assert [part["memory"] for part in facts["cards"][0]["instances"]] == [20 * 2**30, 10 * 2**30, 5 * 2**30]
    assert "article, dgx1" in run([COMMAND, "devices", "--machine", "dgx9"]).stderr


def test_devices_draws_a_pasted_matrix(tmp_path):
    pasted = tmp_path / "topology.txt"
    pasted.write_text(
        "$ nvidia-smi topo -m\n\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-7\nGPU1\tNV4\t X \t0-7\n"
    )
    shown = run([COMMAND, "devices", "--topology", str(pasted)]).stdout
    assert re.search(r"1 +NV4 +X", shown)
    assert "80 GB/s" in shown
    plain = run([COMMAND, "devices", "--topology", str(pasted), "--json"]).stdout
    assert cn.Topology.from_json(plain) == cn.Topology.from_text(pasted.read_text())
    pasted.write_text("nothing of the kind")
    for path in (pasted, tmp_path / "missing"):
        done = run([COMMAND, "devices", "--topology", str(path)])
        assert done.returncode == 2
        assert "cannot work with" in done.stderr
        assert "Traceback" not in done.stderr


def test_colours_on_a_terminal():
    from rich.console import Console

    from colonnade.show.machine import links

    console = Console(force_terminal=True, color_system="standard", width=80)
    with console.capture() as captured:
        console.print(links(cn.Topology.groups([[0, 1], [2, 3]])))
    assert "\x1b[33mPHB" in captured.get()
    assert "\x1b[31mSYS!" in captured.get()
