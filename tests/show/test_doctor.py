import io

from machines import machine
from rich.console import Console

from colonnade.hardware.doctors import doctor
from colonnade.hardware.probes.probe import TensorFlow
from colonnade.show.doctor import report


def test_the_report_names_what_to_do():
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(report(doctor.examine(machine("article"), TensorFlow("2.21.0"))))
    text = console.export_text()
    assert "BLOCKS driver and CUDA" in " ".join(text.split())
    assert "do:  pip install 'colonnade[gpu]'" in text
    assert "1 thing in the way." in text
