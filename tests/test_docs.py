"""What the documentation shows is run: Python blocks of the README and the pages, doctests of the modules."""

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys

import pytest
from families import kept
from fresh import ROOT, forked, run

import colonnade

MODULES = sorted(m.name for m in pkgutil.walk_packages(colonnade.__path__, "colonnade."))


def test_readme_example_prints_what_it_says():
    text = (ROOT / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    done = run([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
    (said,) = re.findall(r"It prints `(.*?)`", text)
    assert done.stdout.strip() == said


BLOCKS = re.compile(r"```python\n(.*?)```(?:\n```text\n(.*?)```)?", re.S)
PAGES = sorted(page.name for page in (ROOT / "docs").glob("*.md") if "```python" in page.read_text())
LONG = ("modes.md", "pipeline.md")
END_OF_BLOCK = "-- end of block --"


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
