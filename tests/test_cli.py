import json
import re
import sys
from pathlib import Path

import pytest
from fresh import ROOT, run

import colonnade as cn

COMMAND = str(Path(sys.executable).with_name("colonnade"))


def test_version():
    assert run([COMMAND, "--version"]).stdout.strip() == cn.__version__


def test_demo():
    done = run([COMMAND, "demo"])
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"\+5\.0000  [+-]0\.0000  \+3\.0000", done.stdout)) == 2
    assert re.search(r"0 +│ CPU:0 +│ CPU:0", done.stdout)
    assert re.search(r"1 +│ CPU:1 +│ CPU:1", done.stdout)
    assert "Try next" in done.stdout


def test_devices():
    assert "cores" in run([COMMAND, "devices"]).stdout
    facts = json.loads(run([COMMAND, "devices", "--json"]).stdout)
    assert facts["cpu"]["cores"] >= 1
    assert isinstance(facts["cards"], list)


def test_a_mistake_shows_no_traceback():
    done = run([COMMAND, "dmeo"])
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


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


def test_doctor():
    done = run([COMMAND, "doctor", "--json"])
    findings = {finding["check"]: finding for finding in json.loads(done.stdout)}
    assert done.returncode == int(any(f["state"] == "blocks" for f in findings.values()))
    assert {"driver and CUDA", "device order", "peer access", "IOMMU", "/dev/shm"} <= findings.keys()
    assert {"memory taken", "locked memory", "threads per device"} <= findings.keys()
    assert all(finding["why"] for finding in findings.values())


def test_doctor_of_a_recorded_machine():
    done = run([COMMAND, "doctor", "--machine", "consumer"])
    assert done.returncode == 0
    assert "0-1 (PHB), 2-3 (PHB)" in " ".join(done.stdout.split())
    assert "ask linus about 31337" in done.stdout


def test_commands_that_look_at_cards_need_no_tensorflow():
    program = (
        "import sys; from colonnade.cli import app; app(['devices'], standalone_mode=False);"
        "print('tensorflow' in sys.modules)"
    )
    assert run([sys.executable, "-c", program]).stdout.strip().endswith("False")


PAGE = (ROOT / "docs" / "machine.md").read_text()


@pytest.mark.parametrize(
    "shown", re.findall(r"```\n\$ (colonnade [^\n]*--machine .*?)\n```", PAGE, re.DOTALL)
)
def test_screens_in_the_documentation(shown):
    command, _, screen = shown.partition("\n")
    out = run([COMMAND, *command.split()[1:]]).stdout.strip("\n")
    assert [line.rstrip() for line in out.splitlines()] == screen.splitlines()


def test_the_example_in_the_documentation():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (said,) = re.findall(r"It prints `(.*?)`", PAGE)
    assert run([sys.executable, "-c", code]).stdout.strip() == said
