import os

import pytest

from colonnade.fleet.wire import MARK, Lines, parted, say, told


def test_lines_come_whole_however_they_arrive():
    whole = b"one\ntwo\r\n\nlast"
    for size in range(1, len(whole) + 1):
        lines = Lines()
        chunks = [whole[i : i + size] for i in range(0, len(whole), size)]
        assert [line for chunk in [*chunks, b""] for line in lines.feed(chunk)] == [
            b"one",
            b"two\r",
            b"",
            b"last",
        ]


def test_a_line_without_end_comes_in_pieces():
    lines = Lines(longest=10)
    assert list(lines.feed(b"x" * 10)) == []
    assert list(lines.feed(b"y")) == [b"x" * 10 + b"y"]
    assert list(lines.feed(b"z\n")) == [b"z"]


def test_a_message_is_told_from_what_a_program_prints(capfd):
    say({"port": 3, "why": "a\nb"})
    message = capfd.readouterr().out.encode()
    (line,) = Lines().feed(message)
    assert parted(line) == (None, {"port": 3, "why": "a\nb"})
    assert parted(b"no newline at its end" + line) == ("no newline at its end", {"port": 3, "why": "a\nb"})
    assert told({"a": "\n"}).count(b"\n") == 1


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"", ""),
        (b"plain", "plain"),
        (b"windows\r", "windows"),
        (b"1%\r2%\r3%", "3%"),  # a bar, as a terminal shows it in the end
        (b"\xff", "\ufffd"),
        ("é".encode(), "é"),
        (MARK + b"{", "\0colonnade {"),
        (MARK + b"3", "\0colonnade 3"),
    ],
)
def test_what_a_program_prints_is_shown(line, shown):
    assert parted(line) == (shown, None)


def test_a_message_is_written_whole_into_a_full_pipe(monkeypatch):
    written = []

    def little(descriptor, rest):
        written.append(bytes(rest[:5]))
        return len(written[-1])

    monkeypatch.setattr(os, "write", little)
    say({"ended": 255})
    monkeypatch.undo()
    assert b"".join(written) == MARK + b'{"ended": 255}\n'
