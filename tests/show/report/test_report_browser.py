"""The page on runs as a browser shows it: drawn, moved, coloured, narrow, printed, made again."""

import json
import re

import pytest
from browser import chromium, opened
from runs import START, run_folder

from colonnade.show.report import report as module
from colonnade.show.report.report import report

EVIL = '<script>window.evil = 1</script><img src=x onerror="window.evil = 2">'


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    """One for many tests, as opening takes a second or two; a test leaves it as it was, but for its zoom."""
    with opened(browser, report([run_folder(tmp_path_factory.mktemp("run") / "first")])) as found:
        yield found


# In milliseconds since the page was asked for: the charts that a reader sees without scrolling are drawn.
FIRST_VIEW = "performance.getEntriesByName('first view').map(mark => mark.startTime)[0]"


def test_the_first_view_is_marked_before_all_is_drawn(page):
    drawn = page.evaluate("performance.getEntriesByName('all drawn').map(mark => mark.startTime)[0]")
    loaded = page.evaluate("performance.getEntriesByType('navigation')[0].domInteractive")
    assert loaded / 2 < page.evaluate(FIRST_VIEW) < drawn


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


def test_titles_of_axes_stand_beside_the_figures(page):
    room = page.evaluate(
        """() => [...document.querySelectorAll(".chart")].filter(e => e.querySelector(".ytitle")).map(e =>
            Math.min(...[...e.querySelectorAll(".ytick")].map(t => t.getBoundingClientRect().left))
            - e.querySelector(".ytitle").getBoundingClientRect().right)"""
    )
    assert len(room) == 3
    assert min(room) >= 0


def test_long_figures_stay_in_their_tile(browser, tmp_path):
    folder = run_folder(tmp_path / "a")
    (folder / "metrics.jsonl").write_text('{"step": 123456789, "loss": 1.234567e-100, "time": 1790009999}')
    with opened(browser, report([folder])) as page:
        over = page.evaluate(
            """[...document.querySelectorAll(".strip dd")].filter(e => e.scrollWidth > e.clientWidth)
                .map(e => e.textContent)"""
        )
        assert over == []


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
    # No legend has to be scrolled.
    page.wait_for_function(
        """() => [...document.querySelectorAll(".chart .legend .scrollbar")]
            .every(e => e.getBoundingClientRect().height === 0)"""
    )
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


NAME = """%{y} "%{x}" it's &quot; &#123; & <b>bold<br>"""


def test_a_name_is_shown_as_it_is(browser, tmp_path):
    """In legends, at axes and where a mouse points: Plotly reads tags, and fills in what follows %{."""
    folders = [run_folder(tmp_path / name, steps=5) for name in (NAME, "other")]
    for folder in folders:
        lines = [{"step": i, "loss": 1 / i, NAME: i} for i in range(1, 6)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with opened(browser, report(folders, tmp_path / "page.html")) as page:
        chart = page.locator(".chart").nth(1)
        assert chart.get_attribute("aria-label") == NAME
        assert chart.locator(".legend .legendtext").all_text_contents() == [NAME, "other"]
        assert chart.locator(".ytitle").text_content() == NAME
        chart.scroll_into_view_if_needed()
        box = chart.locator(".nsewdrag").bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=4)
        page.wait_for_selector(".hoverlayer .legendtext", timeout=10_000)
        shown = chart.locator(".hoverlayer .legendtext").all_text_contents()
        assert [text for text in shown if NAME in text], shown
        assert not [text for text in shown if "%{" in text.replace(NAME, "")], shown


PRINTED = """() => [...document.querySelectorAll(".chart")].map(e => ({
    run: e.closest("details")?.id,
    marks: e.querySelectorAll(".scatterlayer path, .barlayer path").length,
    wide: e.querySelector(".main-svg")?.getBoundingClientRect().width ?? 0,
    colour: e._fullLayout?.font.color,
}))"""


def test_printed_several_runs_are_unfolded_and_folded_again(browser, tmp_path):
    folders = [run_folder(tmp_path / name, steps=50) for name in ("a", "b", "c")]
    with opened(browser, report(folders, tmp_path / "page.html"), scheme="dark") as page:
        page.locator("details.run summary").nth(1).click()
        page.wait_for_function("document.documentElement.dataset.drawn === '5'")
        # At once, as a browser prints: what is not drawn by then is missing on paper.
        seen = page.evaluate(f"() => {{ dispatchEvent(new Event('beforeprint')); return ({PRINTED})(); }}")
        assert [chart["run"] for chart in seen[3:]] == [f"run-{i}" for i in range(3) for _ in range(2)]
        for chart in seen:
            assert chart["marks"] > 0, seen
            assert 300 < chart["wide"] <= 640, seen
            assert chart["colour"] == "#1d2230"
        assert page.locator("details.run[open]").count() == 3
        page.set_viewport_size({"width": 690, "height": 900})  # that of the paper
        page.emulate_media(media="print")
        assert page.evaluate("document.documentElement.scrollWidth") <= 690  # no table is cut off
        page.emulate_media(media="screen", color_scheme="dark")
        page.set_viewport_size({"width": 1280, "height": 900})
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.evaluate("[...document.querySelectorAll('details[open]')].map(e => e.id)") == ["run-1"]
        drawn = page.pdf(print_background=True, format="A4")  # the browser tells of it by itself
        assert 4 <= len(re.findall(rb"/Type\s*/Page\b", drawn)) <= 20
        assert page.evaluate("[...document.querySelectorAll('details[open]')].map(e => e.id)") == ["run-1"]
        page.locator("details.run summary").nth(2).click()  # as wide as the page again
        page.wait_for_function(f"(({PRINTED})())[7].wide === ({PRINTED})()[5].wide")
        assert {chart["colour"] for chart in page.evaluate(PRINTED)} == {"#e6e8ee"}


@pytest.mark.long
def test_a_hundred_thousand_steps_are_drawn_in_two_seconds(browser, tmp_path):
    """Until all charts are there, of which those that are seen first are the first.

    By the clock of the thread that does it, which stands still while others have the processor.
    """
    path = report([run_folder(tmp_path / "long", steps=100_000)])
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    clock = context.new_cdp_session(page)
    clock.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(path.as_uri())
    page.wait_for_function("document.documentElement.dataset.drawn === '5'", timeout=60_000)
    figures = {one["name"]: one["value"] for one in clock.send("Performance.getMetrics")["metrics"]}
    context.close()
    assert 0.05 < figures["TaskDuration"] < 2
