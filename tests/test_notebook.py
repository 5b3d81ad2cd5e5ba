"""The notebook of the examples, executed as Jupyter would; what it shows is looked at in a browser."""

import os

import nbformat
import pytest
from browser import chromium
from fresh import QUIET, ROOT
from nbclient import NotebookClient

pytestmark = pytest.mark.long  # a kernel of its own


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """The code cells, with what they put out."""
    notebook = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
    assert all(not cell.outputs for cell in notebook.cells if cell.cell_type == "code"), "outputs are kept"
    client = NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(tmp_path_factory.mktemp("notebook"))}}
    )
    client.execute(env={**os.environ, **QUIET})
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def html(cell):
    """The HTML that a cell shows, one piece for each output."""
    return [output.data["text/html"] for output in cell.outputs if "text/html" in output.get("data", {})]


def said(cell):
    return "".join(
        output.text for output in cell.outputs if output.output_type == "stream" and output.name == "stdout"
    )


def test_ten_cells_show_tables_and_pictures(cells):
    assert len(cells) == 10
    setup, topology, _, report, placement, memory, fit, timeline, record, _ = cells
    assert "/device:CPU:3" in setup.outputs[-1].data["text/plain"]
    assert "<svg" in html(topology)[0]
    assert "4 devices and one: equal" in html(report)[0]
    assert "ops by device" in html(placement)[0]
    assert "parameters" in html(memory)[0]
    proof, bar, history = sorted(html(fit), key=lambda piece: ("steps" in piece, "step 200/200" in piece))
    assert "proved on the first batch" in proof
    assert "step 200/200" in bar  # one line, drawn again in its place
    assert "200 steps" in history
    assert "<rect" in html(timeline)[0]
    assert "5 steps in" in html(timeline)[0]
    assert "accuracy" in html(record)[0]


def test_a_page_and_a_message_at_the_end(cells):
    *_, page, late = cells
    assert said(page).strip().endswith("report.html")
    assert "in a notebook, restart the kernel first" in said(late)


def test_what_is_shown_takes_the_colours_of_the_notebook(cells, tmp_path):
    pieces = "".join(piece for cell in cells for piece in html(cell))
    for name, colours in (("light", "color:#222;background:#fff"), ("dark", "color:#eee;background:#111")):
        (tmp_path / f"{name}.html").write_text(f'<meta charset="utf-8"><body style="{colours}">{pieces}')
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 900, "height": 700})
        for name, colour in (("light", "rgb(34, 34, 34)"), ("dark", "rgb(238, 238, 238)")):
            page.goto((tmp_path / f"{name}.html").as_uri())
            found = page.evaluate(
                """() => [...new Set([...document.querySelectorAll("td, th, svg > text")].map(
                    e => e.tagName === "text" ? getComputedStyle(e).fill : getComputedStyle(e).color))]"""
            )
            assert found == [colour]
            assert page.evaluate("document.documentElement.scrollWidth") <= 900
        page.screenshot(path=str(tmp_path / "dark.png"), full_page=True)
