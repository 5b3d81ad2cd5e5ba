"""What the documentation shows is run: Python blocks of the README and the pages, doctests of the modules."""

import difflib
import doctest
import importlib
import json
import pkgutil
import re
import subprocess
import sys

import pytest
import tensorflow as tf
from families import kept
from fresh import ROOT, forked

import colonnade

MODULES = sorted(m.name for m in pkgutil.walk_packages(colonnade.__path__, "colonnade."))


BLOCKS = re.compile(r"```python\n(.*?)```(?:\n```text\n(.*?)```)?", re.S)
PAGES = sorted(page.name for page in (ROOT / "docs").glob("*.md") if "```python" in page.read_text())
LONG = ("modes.md", "pipeline.md", "width.md")
END_OF_BLOCK = "-- end of block --"
README = (ROOT / "README.md").read_text()


def test_readme_examples_print_what_they_say():
    """Each by itself, as somebody who copies one would run it."""
    blocks = BLOCKS.findall(README)
    assert len(blocks) == README.count("```text\n") == 2
    for code, said in blocks:
        done = forked(["-c", code])
        assert done.returncode == 0, done.stderr
        assert _without_rounding(done.stdout) == _without_rounding(said), code


def _without_rounding(text):
    """Differences such as 1.2e-07 depend on the CPU; blanks that fill up lines do not show."""
    return [re.sub(r"\d\.\de[+-]\d\d", "#", line).rstrip() for line in text.splitlines()]


def test_the_diff_of_the_readme_is_that_of_its_example():
    before, after = (
        (ROOT / "examples" / "08_keras_fit" / f"{name}.py").read_text().splitlines()
        for name in ("before", "after")
    )
    changes = [line for line in difflib.unified_diff(before, after, n=0) if line[:3] not in ("---", "+++")]
    (shown,) = re.findall(r"```diff\n(.*?)```", README, re.S)
    assert _changed(shown.splitlines()) == _changed(changes)


def _changed(lines):
    return [line for line in lines if line[0] in "+-" and line[1:].strip()]


def test_speeds_that_are_shown_are_those_that_were_measured():
    """Tables of the README and of the benchmark are what its command writes from the results."""
    code = """
import json, sys
sys.path[:0] = ["benchmarks", "benchmarks/throughput"]
from pathlib import Path
import report
from results import Results
known = Results.load(Path("benchmarks/throughput/results.json"))
print(json.dumps([report.short(known), report.whole(known)]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for page, made in zip((ROOT, ROOT / "benchmarks" / "throughput"), json.loads(done.stdout), strict=True):
        (shown,) = re.findall(
            "<!-- contest -->\n\n(.*?)\n\n<!-- /contest -->", (page / "README.md").read_text(), re.S
        )
        assert shown == made


def test_pictures_can_be_made_again(tmp_path):
    done = forked([str(ROOT / "docs" / "pictures.py"), str(tmp_path), "2"])
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", kept(PAGES, *(page for page in PAGES if page not in LONG)))
def test_pages_print_what_they_say(name):
    """The blocks of a page run in order, in one process; a text block after one is what it prints."""
    blocks = BLOCKS.findall((ROOT / "docs" / name).read_text())
    done = forked(["-c", "".join(f"{code}\nprint({END_OF_BLOCK!r})\n" for code, _ in blocks)])
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split(f"{END_OF_BLOCK}\n")
    for (code, said), found in zip(blocks, printed, strict=False):
        assert not said or found == said, code


@pytest.mark.parametrize("name", MODULES)
def test_doctests(name):
    tf.random.set_seed(None)  # other tests set one, and an example shows a shuffle's
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0


@pytest.mark.long
def test_examples_of_public_names_can_be_copied():
    """They bring their own imports."""
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for name in colonnade.__all__:
        for example in doctest.DocTestFinder().find(getattr(colonnade, name), name, globs={}):
            assert runner.run(example).failed == 0, example.name


def test_links_in_the_documentation_lead_somewhere():
    missing = [
        (page.name, link)
        for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text())
        if not (page.parent / link).exists()
    ]
    assert missing == []


def test_no_path_of_a_machine_in_the_repository():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split("\n")
    home = re.compile(r"/(home|root|Users)/\w")
    texts = {
        name: (ROOT / name).read_text()
        for name in listed
        if name.endswith((".py", ".md", ".toml", "Makefile"))
    }
    assert [name for name, text in texts.items() if home.search(text) and name != "tests/test_docs.py"] == []
