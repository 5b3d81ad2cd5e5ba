"""Lines that nobody reads hold up nobody, and those that somebody reads later are all there."""

import os
import threading

import pytest

from colonnade.fleet import printer as module
from colonnade.fleet.printer import Printer

LINE = "x" * 999


@pytest.fixture
def pipe():
    """What is printed to, and where it is read."""
    read, write = os.pipe()
    with open(read, "rb") as source, open(write, "w", encoding="utf-8") as sink:
        yield source, sink


def read_all(source, found):
    found.append(source.read().decode())


def test_lines_that_are_not_read_hold_up_nobody_and_are_kept(pipe):
    source, sink = pipe
    found, count = [], 500  # ten times what a pipe holds
    with Printer() as printer:
        for number in range(count):  # returns although nobody reads
            printer.print(f"{number} {LINE}", sink)
        assert printer._thread.is_alive()
        reader = threading.Thread(target=read_all, args=(source, found))
        reader.start()
    sink.close()
    reader.join()
    assert [int(line.partition(" ")[0]) for line in found[0].splitlines()] == list(range(count))


def test_what_is_too_much_is_left_out_and_counted(pipe, monkeypatch):
    monkeypatch.setattr(module, "LONGEST", 20_000)
    source, sink = pipe
    found = []
    with Printer() as printer:
        for _ in range(500):
            printer.print(LINE, sink)
        reader = threading.Thread(target=read_all, args=(source, found))
        reader.start()
    sink.close()
    reader.join()
    *lines, last = found[0].splitlines()
    assert 20 <= len(lines) < 200  # what is kept, and what the pipe holds
    assert last == f"colonnade: {500 - len(lines)} lines were left out, which nobody read in time"


def test_that_nobody_is_ever_going_to_read_is_raised_once_and_other_streams_go_on(pipe, capfd):
    source, sink = pipe
    source.close()
    _, other = os.pipe()
    with pytest.raises(BrokenPipeError), Printer() as printer:
        printer.print("to nobody", sink)
    with open(other, "w") as spare, Printer() as printer:
        printer.print("to nobody", sink)
        while not printer._broken:
            pass
        with pytest.raises(BrokenPipeError):
            printer.check()
        printer.check()
        printer.print("to nobody", sink)
        printer.print("to somebody", spare)


def test_a_full_disk_ends_nothing_and_is_said_where_there_is_room(tmp_path):
    with open("/dev/full", "w") as full, open(tmp_path / "log", "w") as other, Printer() as printer:
        printer.print("no room", full)
        printer.print("room", other)
    said = "colonnade: 1 lines were left out, which nobody read in time"
    assert (tmp_path / "log").read_text().splitlines() == ["room", said]


def test_a_stream_that_is_no_file_is_written_to(capsys):
    import sys

    with Printer() as printer:
        printer.print("é", sys.stdout)
    assert capsys.readouterr().out == "é\n"
