"""Pieces of HTML: escaped, and with the colours of the page around them."""

from xml.etree import ElementTree

from colonnade.describe.pictures.html import MOST_ROWS, bars, legend, network, paragraphs, size, table

EVIL = '<script>"&'


def parsed(text):
    return ElementTree.fromstring(f"<div>{text}</div>")


def texts(text):
    return [part for part in parsed(text).itertext() if part.strip()]


def test_tables_have_text_on_the_left_and_numbers_on_the_right():
    rows = parsed(table(["name", "n"], [[EVIL, 1]], title=EVIL)).iter("tr")
    head, row = ([(c.text, c.get("style").rpartition(":")[2]) for c in line] for line in rows)
    assert head == [("name", "left"), ("n", "right")]
    assert row == [(EVIL, "left"), ("1", "right")]


def test_of_many_rows_the_first_are_shown():
    rows = [[f"row {i}", i] for i in range(MOST_ROWS + 1234)]
    shown = [[cell.text for cell in row] for row in parsed(table(["name", "n"], iter(rows))).iter("tr")]
    assert shown[1:-1] == [[name, str(i)] for name, i in rows[:MOST_ROWS]]
    assert shown[-1] == ["and 1,234 more", None]
    assert len(list(parsed(table(["name", "n"], rows[:MOST_ROWS])).iter("tr"))) == MOST_ROWS + 1


def test_words():
    assert texts(paragraphs([EVIL, "b"])) == [EVIL, "b"]
    assert texts(legend(["forward", EVIL])) == ["forward", EVIL]


def test_bars_are_parts_of_a_total():
    drawn = parsed(bars({EVIL: {"forward": 1.0, "waiting": 3.0}}, 4.0))
    widths = [s.get("style") for s in drawn.iter("span") if s.get("title")]
    assert [style.partition(";")[0] for style in widths] == ["width:25.0000%", "width:75.0000%"]
    assert [s.get("title") for s in drawn.iter("span") if s.get("title")] == [
        "forward: 25.0%",
        "waiting: 75.0%",
    ]
    assert texts(bars({"CPU:0": {"forward": 0.0}}, 0.0))[0] == "CPU:0"


def test_words_stand_on_links_that_are_few():
    links = {(0, 1): ("5 B", 5.0), (1, 0): ("5 B", 5.0), (0, 2): ("1 B", 1.0), (1, 2): ("3 B", 3.0)}
    drawn = parsed(network(["a", "b", EVIL], {**links, (2, 1): ("4 B", 4.0)}, labelled=True))
    words = [text.text for text in drawn.iter("text")]
    assert words == ["5 B each way", f"→ {EVIL}: 1 B", f"→ {EVIL}: 3 B", "→ b: 4 B", "a", "b", EVIL]
    ring = {(i, (i + 1) % 13): ("1 B", 1.0) for i in range(13)}
    assert len(list(parsed(network(list("abcdefghijklm"), ring, labelled=True)).iter("text"))) == 13


def test_a_network_draws_a_line_for_both_ways():
    links = {(0, 1): ("8 B", 8.0), (1, 0): ("4 B", 4.0), (1, 2): (EVIL, 1.0), (2, 2): ("itself", 9.0)}
    drawn = parsed(network(["a", EVIL, "c"], links))
    lines = list(drawn.iter("line"))
    assert [line[0].text for line in lines] == [f"a → {EVIL}: 8 B\n{EVIL} → a: 4 B", f"{EVIL} → c: {EVIL}"]
    assert float(lines[0].get("stroke-width")) > float(lines[1].get("stroke-width"))
    assert [text.text for text in drawn.iter("text")] == ["a", EVIL, "c"]
    assert list(parsed(network(["a"], {})).iter("line")) == []


def test_links_over_which_nothing_goes_are_thin():
    kinds = {(0, 1): "NV4", (1, 0): "NV4", (1, 2): EVIL, (2, 1): "PIX", (2, 2): "X", (0, 2): "SYS"}
    drawn = list(parsed(network(["a", "b", "c"], {(1, 0): ("8 B", 8.0)}, kinds=kinds)).iter("line"))
    assert [line[0].text for line in drawn] == [
        "a \u2192 c: SYS",
        f"b \u2192 c: {EVIL}\nc \u2192 b: PIX",
        "b \u2192 a: 8 B\na \u2194 b: NV4",
    ]
    assert [line.get("stroke") for line in drawn[:2]] == ["currentColor"] * 2
    assert float(drawn[2].get("stroke-width")) > float(drawn[0].get("stroke-width"))


def test_sizes():
    assert [size(n) for n in (1, 1023, 1024, 2**31, 2**60)] == [
        "1 B",
        "1023 B",
        "1.0 KiB",
        "2.0 GiB",
        "1048576.0 TiB",
    ]
