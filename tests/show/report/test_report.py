"""The page on runs: what is written where, what is refused, and what a browser makes of it."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys

import pytest
from browser import chromium, opened
from fresh import COMMAND, run
from runs import START, run_folder, timeline

from colonnade.errors import ColonnadeError, InvalidArgument
from colonnade.show.report import report as module
from colonnade.show.report.report import report, watch

EVIL = '<script>window.evil = 1</script><img src=x onerror="window.evil = 2">'


def test_one_file_beside_the_run(tmp_path):
    folder = run_folder(tmp_path / "first")
    page = report([folder])
    assert page == folder / "report.html"
    text = page.read_text()
    assert text.index(f'<meta name="generator" content="{module.GENERATOR}">') < 2000
    assert "<title>first · Colonnade</title>" in text
    assert not re.search(r'(?:src|href)="(?!#|data:)', text.partition("<script>")[0])
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []
    assert report([folder]) == page  # a page of ours is made again


@pytest.mark.long
def test_a_long_run_is_a_small_page_without_a_loss_of_spikes(tmp_path):
    folder = run_folder(tmp_path / "long", steps=100_000, spike=66_666)
    text = report([folder]).read_text()
    assert len(text) < 10 * 2**20
    charts = json.loads(re.search(r'id="charts">(.*?)</script>', text, re.S)[1])
    traces = [trace for chart in charts for trace in chart["traces"]]
    assert max(len(trace["x"]) for trace in traces) <= 2000
    loss = next(trace for trace in traces if trace.get("name") == "loss")
    assert loss["x"][loss["y"].index(max(loss["y"]))] == 66_666


def test_what_is_not_ours_is_kept(tmp_path):
    folder, letter = run_folder(tmp_path / "a"), tmp_path / "letter.html"
    letter.write_text("<p>Dear Ada,")
    with pytest.raises(InvalidArgument, match=r"is no page of Colonnade's\. Name another file, or .*--force"):
        report([folder], letter)
    assert letter.read_text() == "<p>Dear Ada,"
    assert report([folder], letter, force=True) == letter
    report([folder], letter)


@pytest.mark.parametrize(
    ("output", "rule"), [(".", "is a directory"), ("nowhere/page.html", "is in no directory")]
)
def test_outputs_that_cannot_be(tmp_path, output, rule):
    folder = run_folder(tmp_path / "a")
    with pytest.raises(InvalidArgument, match=rule):
        report([folder], tmp_path / output)


def test_a_pipe_is_not_waited_for(tmp_path):
    folder, pipe = run_folder(tmp_path / "a"), tmp_path / "pipe"
    os.mkfifo(pipe)
    done = run([COMMAND, "report", str(folder), "-o", str(pipe)], timeout=60)
    assert done.returncode == 2
    assert "is there, and is no regular file. Name another file" in " ".join(done.stderr.split())
    with pytest.raises(InvalidArgument, match="is no regular file"):
        report([folder], pipe, force=True)
    assert pipe.is_fifo()


def test_a_path_with_a_nul_byte(tmp_path):
    folder = run_folder(tmp_path / "a")
    with pytest.raises(InvalidArgument, match=r"output='.*\\x00.*': is no path that a system can have"):
        report([folder], f"{tmp_path}/a\0b.html")
    with pytest.raises(InvalidArgument, match=r"DIR='a\\x00b': is no path that a system can have"):
        report(["a\0b"])


def test_a_folder_that_may_not_be_looked_into(tmp_path, monkeypatch):
    def forbidden(path, *more):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("pathlib.Path.is_file", forbidden)
    monkeypatch.setattr("os.listdir", forbidden)
    with pytest.raises(InvalidArgument, match=r"cannot be read \(Permission denied\)"):
        report([tmp_path], tmp_path / "page.html")


def test_an_output_without_permission(tmp_path, monkeypatch):
    folder = run_folder(tmp_path / "a")

    def forbidden(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.fsync", forbidden)
    with pytest.raises(InvalidArgument, match=r"cannot be written \(Permission denied\)"):
        report([folder])
    assert not [path.name for path in folder.iterdir() if "report" in path.name]


def test_names_that_are_no_text(tmp_path):
    """A folder in another encoding, and half a pair of surrogates, which JSON can spell."""
    folder = run_folder(tmp_path / os.fsdecode(b"caf\xe9"), models=["\ud800"])
    line = json.dumps({"step": 1, "loss": 1.0, "\ud800": 0.5, "replicas": {"\ud800": 1.0}})
    (folder / "metrics.jsonl").write_text(line)
    text = report([folder]).read_text()
    assert "<title>caf? \u00b7 Colonnade</title>" in text
    assert 'aria-label="?"' in text
    assert r'"name": "\ud800"' in text
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_a_link_is_followed_and_kept(tmp_path):
    folder, link = run_folder(tmp_path / "a"), tmp_path / "link.html"
    link.symlink_to("there.html")
    with pytest.raises(InvalidArgument, match=r"is a link to there\.html, which is not there\..*--force"):
        report([folder], link)
    assert not (tmp_path / "there.html").exists()
    assert report([folder], link, force=True) == link
    assert report([folder], link) == link  # a page of ours by now
    assert link.is_symlink()
    assert "Colonnade report" in (tmp_path / "there.html").read_text()
    link.unlink()
    link.symlink_to(tmp_path / "nowhere" / "there.html")
    with pytest.raises(InvalidArgument, match="is in no directory"):
        report([folder], link, force=True)


def test_no_folder_at_all(tmp_path):
    with pytest.raises(InvalidArgument, match="names no folder"):
        report([])
    with pytest.raises(InvalidArgument, match="there is no such directory"):
        report([tmp_path / "nowhere"])
    assert list(tmp_path.iterdir()) == []


def test_without_plotly_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(ColonnadeError, match=r"pip install 'colonnade\[report\]'"):
        report([run_folder(tmp_path / "a")])


def test_a_page_is_made_of_what_is_there(tmp_path):
    folder = tmp_path / "torn"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": null}\n{"step": 2, "lo')
    text = report([folder]).read_text()
    for words in (
        "run.json is missing",
        "metrics.jsonl: 1 broken line left out (2)",
        "progress.jsonl is missing",
        "The loss was not finite at step 1;",
        "how it ended is not known",
    ):
        assert words in text


@pytest.mark.parametrize("more", [{"end": 10**400}, {"link": 3}, {"cause": {}}, {"bytes": "x"}, {"step": []}])
def test_a_timeline_of_wrong_types_is_left_out(tmp_path, more):
    folder = run_folder(tmp_path / "a")
    event = {"device": "CPU:0", "start": 0.0, "end": 1.0, "kind": "forward", **more}
    for name in ("timeline", "predicted"):
        (folder / f"{name}.json").write_text(json.dumps({"events": [event]}))
    text = report([folder]).read_text()
    assert "timeline.json is damaged and left out" in text
    assert "predicted.json is damaged and left out" in text


def test_events_that_are_not_drawn_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(module.charts, "MOST_EVENTS", 20)
    folder = run_folder(tmp_path / "a")
    (folder / "predicted.json").write_text(timeline(steps=5).to_json())
    text = report([folder]).read_text()
    assert "8 events that are too short to be seen are not drawn" in text  # of 4 steps of 7 events
    assert "15 predicted events that are too short to be seen are not drawn" in text


def test_links_that_cannot_be_read_are_told(tmp_path):
    text = report([run_folder(tmp_path / "a", topology={"version": 77})]).read_text()
    assert "run.json: the links between devices cannot be read, and are left out" in text
    assert "MiB in all, as counted." in text


def test_a_page_of_a_run_that_goes_on_looks_at_itself_again(tmp_path, monkeypatch):
    folder = run_folder(tmp_path / "a", how=None)
    naps = []
    monkeypatch.setattr(module.time, "sleep", naps.append)
    monkeypatch.setattr(module.time, "time", lambda: START + 5)
    for page in itertools.islice(watch([folder]), 2):
        assert 'data-refresh="5"' in page.read_text()
    assert naps == [module.SECONDS]
    monkeypatch.setattr(module.time, "time", lambda: START + 50_000)
    assert "data-refresh" not in report([folder]).read_text().partition("<style>")[0]


@pytest.mark.parametrize(("how", "later"), [("finished", 5), (None, 50_000)])
def test_a_watched_page_always_looks_at_itself_again(tmp_path, monkeypatch, how, later):
    """A run is silent while it compiles, and has finished between two fits: a page must not be the last."""
    folder = run_folder(tmp_path / "a", how=how)
    monkeypatch.setattr(module.time, "time", lambda: START + later)

    def goes_on(seconds):
        with (folder / "metrics.jsonl").open("a") as file:
            file.write('{"step": 7777, "loss": 0.0123}\n')

    monkeypatch.setattr(module.time, "sleep", goes_on)
    first, second = (page.read_text() for page in itertools.islice(watch([folder]), 2))
    for text in (first, second):
        assert 'data-refresh="5"' in text.partition("<style>")[0]
    assert "<dd>7,777<" not in first
    assert "<dd>7,777<" in second


def test_the_command(tmp_path):
    folder = run_folder(tmp_path / "a")
    done = run([COMMAND, "report", str(folder), str(folder), "-o", str(tmp_path / "both.html")])
    assert (done.returncode, done.stdout.strip()) == (0, str(tmp_path / "both.html"))
    assert "<h1>2 runs</h1>" in (tmp_path / "both.html").read_text()
    done = run([COMMAND, "report", str(tmp_path)])
    assert done.returncode == 2
    assert f"It has runs inside: {folder}" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_goes_on_until_ctrl_c(tmp_path):
    folder = run_folder(tmp_path / "a")
    started = [COMMAND, "report", str(folder), "--watch"]
    with subprocess.Popen(started, stdout=subprocess.PIPE, text=True) as command:
        assert "made again every few seconds until Ctrl-C" in command.stdout.readline()
        assert (folder / "report.html").exists()
        command.send_signal(signal.SIGINT)
        assert command.wait(timeout=60) == 0


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    """One for many tests, as opening takes a second or two; a test leaves it as it was, but for its zoom."""
    with opened(browser, report([run_folder(tmp_path_factory.mktemp("run") / "first")])) as found:
        yield found


def test_every_chart_is_drawn_with_its_points(page):
    found = page.evaluate(
        """() => [...document.querySelectorAll(".chart")].map(e => ({
            size: e.querySelector("svg.main-svg").getBoundingClientRect().width
                * e.querySelector("svg.main-svg").getBoundingClientRect().height,
            points: e.data.reduce((n, t) => n + (t.x || []).length, 0),
            marks: e.querySelectorAll(".scatterlayer path, .barlayer path").length,
        }))"""
    )
    # Loss, accuracy, speed, timeline, memory.
    assert len(found) == 5
    for chart in found:
        assert chart["size"] > 50_000
        assert chart["points"] > 1
        assert chart["marks"] > 0
    assert page.locator("svg.colonnade line").count() == 1  # the link, both ways
    texts = page.evaluate("[...document.querySelectorAll('svg.colonnade text')].map(e => e.textContent)")
    assert texts == ["→ CPU:1: 1.0 MiB", "→ CPU:0: 3.0 MiB", "CPU:0", "CPU:1"]
    assert page.locator("h1 .pill").inner_text() == "finished"
    assert "Between steps: 15% of the time" in page.locator(".words").inner_text()


def middle(page, chart):
    box = page.locator(f'.chart[data-chart="{chart}"] .nsewdrag').bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, box


def number_of(page, words):
    return page.evaluate(
        """words => [...document.querySelectorAll(".chart")]
            .find(e => e.ariaLabel.startsWith(words)).dataset.chart""",
        words,
    )


def span(page, chart):
    start, end = page.evaluate(
        """n => document.querySelector(`.chart[data-chart="${n}"]`)._fullLayout.xaxis.range""", chart
    )
    return end - start


def test_hover_and_zoom(page):
    loss = number_of(page, "loss")
    page.locator(f'.chart[data-chart="{loss}"]').scroll_into_view_if_needed()
    x, y, box = middle(page, loss)
    page.mouse.move(x, y, steps=4)
    page.wait_for_selector(f'.chart[data-chart="{loss}"] .hoverlayer .legendtext', timeout=10_000)
    before = span(page, loss)
    page.mouse.down()
    page.mouse.move(x + box["width"] / 4, y, steps=4)
    page.mouse.up()
    page.wait_for_function(
        """([n, was]) => {
            const [a, b] = document.querySelector(`.chart[data-chart="${n}"]`)._fullLayout.xaxis.range;
            return b - a < was / 2;
        }""",
        arg=[loss, before],
    )
    timeline = number_of(page, "Timeline")
    page.locator(f'.chart[data-chart="{timeline}"]').scroll_into_view_if_needed()
    x, y, box = middle(page, timeline)
    page.mouse.move(box["x"] + 20, y, steps=4)
    page.wait_for_selector(f'.chart[data-chart="{timeline}"] .hoverlayer text', timeout=10_000)
    told = page.locator(f'.chart[data-chart="{timeline}"] .hoverlayer').text_content()
    assert "3 ms, from 0 ms" in told  # the forward pass of CPU:1, which ends at 3 ms and begins at 0
    page.mouse.move(box["x"] + box["width"] * 4.5 / 47, y, steps=4)
    page.wait_for_function(
        """n => document.querySelector(`.chart[data-chart="${n}"] .hoverlayer`).textContent
            .includes("5 ms, from 3 ms")""",
        arg=timeline,
    )
    before = span(page, timeline)
    page.mouse.wheel(0, -300)
    page.wait_for_function(
        """([n, was]) => {
            const [a, b] = document.querySelector(`.chart[data-chart="${n}"]`)._fullLayout.xaxis.range;
            return b - a < was;
        }""",
        arg=[timeline, before],
    )


def test_buttons(page):
    loss = number_of(page, "loss")
    card = page.locator(".card", has=page.locator(f'.chart[data-chart="{loss}"]')).last
    card.get_by_role("button", name="log").click()
    axis = f"""document.querySelector('.chart[data-chart="{loss}"]')._fullLayout"""
    assert page.evaluate(f"{axis}.yaxis.type") == "log"
    card.get_by_role("button", name="over steps").click()
    page.wait_for_function(f"{axis}.xaxis.title.text === 'seconds'")
    assert page.get_by_role("button", name="over time").count() == 2
    assert page.evaluate(f"{axis}.yaxis.type") == "log"
    timeline = number_of(page, "Timeline")
    whole = page.evaluate(
        "n => JSON.parse(document.getElementById('charts').textContent)[n].layout.xaxis.range", timeline
    )
    card = page.locator(".card", has=page.locator(f'.chart[data-chart="{timeline}"]')).last
    card.get_by_role("button", name="all").click()
    assert span(page, timeline) == whole[1] - whole[0]
    card.get_by_role("button", name="closer").click()
    assert span(page, timeline) == (whole[1] - whole[0]) / 2
    card.get_by_role("button", name="farther").click()
    assert span(page, timeline) == whole[1] - whole[0]


@pytest.mark.parametrize("dragged", [(2.0, 3.0), (-3.0, -2.0), (0.9, 1.4), (-0.1, 0.1), (0.0, 1e-12)])
def test_zoom_stays_inside_of_a_timeline(page, dragged):
    timeline = number_of(page, "Timeline")
    chart = f"""document.querySelector('.chart[data-chart="{timeline}"]')"""
    card = page.locator(".card", has=page.locator(f'.chart[data-chart="{timeline}"]')).last
    card.get_by_role("button", name="all").click()
    first, last = page.evaluate(f"{chart}._fullLayout.xaxis.range")
    moved = [first + (last - first) * part for part in dragged]
    page.evaluate(f"range => Plotly.relayout({chart}, {{'xaxis.range': range}})", moved)
    for name in ("closer", "farther", "farther"):
        card.get_by_role("button", name=name).click()
        start, end = page.evaluate(f"{chart}._fullLayout.xaxis.range")
        assert first <= start < end <= last
    card.get_by_role("button", name="all").click()
    assert page.evaluate(f"{chart}._fullLayout.xaxis.range") == [first, last]


def test_no_button_sends_a_chart_away(page):
    titles = page.evaluate("[...document.querySelectorAll('.modebar-btn')].map(e => e.dataset.title)")
    assert "Download plot as a PNG" in titles
    assert not [title for title in titles if "Share" in title or "loud" in title]


COLOURS = """() => [getComputedStyle(document.body).backgroundColor,
                    document.querySelector(".chart")._fullLayout.font.color]"""


def test_light_and_dark(page):
    """As the system has it, or as the button says."""

    def becomes(colours):
        said = json.dumps(json.dumps(colours, separators=(",", ":")))
        page.wait_for_function(f"JSON.stringify(({COLOURS})()) === {said}")

    light, dark = ["rgb(246, 245, 242)", "#1d2230"], ["rgb(18, 21, 26)", "#e6e8ee"]
    for scheme, colours in (("light", light), ("dark", dark), ("light", light)):
        page.emulate_media(color_scheme=scheme)
        becomes(colours)
    for colours in (dark, light):
        page.locator("[data-act=theme]").click()
        becomes(colours)


def test_a_narrow_screen_needs_no_scrolling_to_the_side(page):
    before = page.viewport_size
    page.set_viewport_size({"width": 360, "height": 740})
    page.wait_for_function(
        """() => [...document.querySelectorAll(".chart, .strip, .card, .chart svg")]
            .every(e => e.getBoundingClientRect().right <= innerWidth)"""
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.set_viewport_size(before)


def test_printed_it_is_light_and_whole(page):
    page.locator("[data-act=theme]").click()
    assert page.evaluate(COLOURS)[1] == "#e6e8ee"
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("nav").is_hidden()
    assert page.evaluate(COLOURS)[1] == "#1d2230"
    drawn = page.pdf(print_background=True, format="A4")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert page.evaluate(COLOURS)[1] == "#e6e8ee"
    page.locator("[data-act=theme]").click()
    assert drawn.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", drawn)) <= 8


def test_the_page_of_one_of_several_machines_says_what_it_is_of(tmp_path):
    several = {"names": ["<a>", "b"], "rank": 1}
    text = report([run_folder(tmp_path / "two", machines=several)]).read_text()
    assert "This is the log of b, machine 1 of &lt;a&gt;, b." in text
    for other in ({"names": ["a"], "rank": 0}, {"names": ["a", "b"], "rank": 7}, "nonsense", {"names": 3}):
        text = report([run_folder(tmp_path / "one", machines=other)]).read_text()
        assert ("This is the log of" in text) == (other == {"names": ["a", "b"], "rank": 7})


def test_all_folders_without_a_run_are_told_at_once(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidArgument) as error:
        report([run_folder(tmp_path / "a"), tmp_path / "nowhere", tmp_path / "file"], tmp_path / "page.html")
    assert [problem.value for problem in error.value.problems] == [
        str(tmp_path / "nowhere"),
        str(tmp_path / "file"),
    ]
    assert not (tmp_path / "page.html").exists()


def test_names_of_the_user_are_text(browser, tmp_path):
    """Not that of the folder: a slash cannot be in it."""
    folder = run_folder(
        tmp_path / EVIL.replace("/", "_"),
        models=[EVIL],
        loss=EVIL,
        devices=[EVIL],
        links=[{"from": EVIL, "to": "CPU:0", "bytes": 1}],
        optimizer={"name": EVIL, "settings": {EVIL: EVIL}},
        memory={"estimate": {EVIL: {"parameters": 1, "total": 1}}},
    )
    line = {"step": 1, "loss": 1.0, EVIL: 2.0, "replicas": {EVIL: 1.0}}
    lines = [{**line, "step": i} for i in range(1, 4)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    event = {"device": EVIL, "start": 0.0, "end": 1.0, "kind": EVIL, "link": EVIL, "cause": EVIL}
    (folder / "timeline.json").write_text(json.dumps({"events": [event]}))
    (folder / "progress.jsonl").write_text(json.dumps({"event": "begin", "time": 1.0}) + "\n{")
    with (folder / "progress.jsonl").open("a") as file:
        file.write("\n" + json.dumps({"event": "end", "how": EVIL, "time": 2.0}))
    with opened(browser, report([folder], tmp_path / "page.html")) as page:
        page.wait_for_timeout(300)
        assert page.evaluate("window.evil") is None
        assert page.locator("img").count() == 0
        assert EVIL in page.locator("#run-0-settings + .columns").inner_text()
        assert EVIL in page.locator("h1 .pill").inner_text()


def test_runs_side_by_side(browser, tmp_path):
    folders = [run_folder(tmp_path / name, steps=steps) for name, steps in (("a", 50), ("b", 90), ("c", 20))]
    with opened(browser, report(folders, tmp_path / "page.html")) as page:
        assert page.evaluate("document.documentElement.dataset.drawn") == "3"
        rows = page.locator("#compared + .card tbody tr")
        assert [rows.nth(i).locator("td").first.inner_text() for i in range(3)] == ["a", "b", "c"]
        page.locator("details.run summary").nth(1).click()
        page.wait_for_function("document.documentElement.dataset.drawn === '5'")  # its timeline and memory


LEFT = """() => {
    const chart = name => [...document.querySelectorAll("details[open] .chart, main > .grid .chart")]
        .find(e => e.ariaLabel.startsWith(name));
    const loss = chart("loss"), timeline = chart("Timeline");
    return {
        theme: document.documentElement.dataset.theme,
        open: [...document.querySelectorAll("details.run[open]")].map(e => e.id),
        refresh: document.querySelector("[data-act=refresh]").textContent,
        over: [...document.querySelectorAll("[data-act=time]")].map(e => e.textContent),
        title: loss._fullLayout.xaxis.title.text,
        log: [loss._fullLayout.yaxis.type,
              loss.closest(".card").querySelector("[data-act=log]").ariaPressed],
        zoom: [loss._fullLayout.xaxis.range, timeline._fullLayout.xaxis.range],
        hidden: loss.data.map(trace => trace.visible ?? true),
    };
}"""


def test_a_refresh_leaves_the_page_as_it_was(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(module.time, "time", lambda: START + 5)
    folders = [run_folder(tmp_path / name, how=None) for name in ("a", "b")]
    made = report(folders, tmp_path / "page.html")
    with opened(browser, made) as page:
        page.locator("[data-act=refresh]").click()
        page.locator("[data-act=theme]").click()
        page.get_by_role("button", name="over steps").first.click()
        page.get_by_role("button", name="log").first.click()
        page.locator("details.run summary").nth(1).click()
        page.wait_for_function("document.documentElement.dataset.drawn === '5'")
        page.locator("#run-1").get_by_role("button", name="closer").first.click()
        loss = "document.querySelector('.chart[aria-label=loss]')"
        page.evaluate(f"Plotly.relayout({loss}, {{'xaxis.range': [0.25, 0.5]}})")
        page.evaluate(f"Plotly.restyle({loss}, {{visible: 'legendonly'}}, [2])")
        before = page.evaluate(LEFT)
        assert (before["theme"], before["open"], before["refresh"]) == ("dark", ["run-1"], "refresh is off")
        assert (before["over"], before["log"]) == (["over time"] * 2, ["log", "true"])
        assert before["zoom"][0] == [0.25, 0.5]
        assert "legendonly" in before["hidden"]
        report(folders, made)
        page.reload()
        page.wait_for_function("document.documentElement.dataset.drawn === '5'")
        assert page.evaluate(LEFT) == before


def test_runs_of_one_name_are_told_apart(tmp_path):
    folders = [run_folder(tmp_path / name / "run", steps=5) for name in ("a", "b")]
    text = report(folders, tmp_path / "page.html").read_text()
    assert '<p class="lead">a/run, b/run</p>' in text
    assert "<td>a/run</td>" in text
    assert '"name": "b/run"' in text  # of a curve


@pytest.mark.long
@pytest.mark.alone
def test_a_page_of_a_hundred_thousand_steps_opens_in_two_seconds(browser, tmp_path):
    page_path = report([run_folder(tmp_path / "long", steps=100_000)])
    times = []
    for _ in range(3):
        with opened(browser, page_path) as page:
            entry = "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
            times.append(page.evaluate(entry))
    assert min(times) < 2000
