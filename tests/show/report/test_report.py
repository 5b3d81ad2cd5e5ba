"""The page on runs: what is written where, and what is refused."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys

import pytest
from fresh import COMMAND, run
from runs import START, run_folder, timeline

from colonnade.errors import ColonnadeError, InvalidArgument
from colonnade.show.report import report as module
from colonnade.show.report.report import report, watch


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


def test_runs_of_one_name_are_told_apart(tmp_path):
    folders = [run_folder(tmp_path / name / "run", steps=5) for name in ("a", "b")]
    text = report(folders, tmp_path / "page.html").read_text()
    assert '<p class="lead">a/run, b/run</p>' in text
    assert "<td>a/run</td>" in text
    assert '"name": "b/run"' in text  # of a curve
