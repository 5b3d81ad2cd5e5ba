"""What the documentation shows is run: Python blocks of the README, and doctests of the modules."""

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys

import pytest
import tensorflow as tf
from fresh import ROOT, run

import colonnade

MODULES = sorted(m.name for m in pkgutil.walk_packages(colonnade.__path__, "colonnade."))


def test_readme_example_prints_what_it_says():
    text = (ROOT / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    done = run([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
    (said,) = re.findall(r"It prints `(.*?)`", text)
    assert done.stdout.strip() == said


@pytest.mark.parametrize("name", MODULES)
def test_doctests(name):
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, extraglobs={"tf": tf}, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0


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
