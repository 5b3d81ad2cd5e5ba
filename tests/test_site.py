"""The site of the documentation: what it is made of, and that what is broken ends the build."""

import importlib.util
import os
import re
import shutil
import sys

import pytest
from browser import chromium
from fresh import ROOT, run

import colonnade as cn


@pytest.fixture(scope="module")
def site():
    spec = importlib.util.spec_from_file_location("site_of_docs", ROOT / "docs" / "site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_public_name_has_a_docstring(site):
    assert site.undocumented() == []
    named = {path.rpartition(".")[2] for path in site.public()}
    assert {*cn.__all__} - {"width"} <= named
    assert {"Dense", "Embedding"} <= named


def test_a_name_without_a_docstring_is_found(site, monkeypatch):
    monkeypatch.setattr(site, "public", lambda: ["colonnade.cli.main"])
    monkeypatch.setattr(site, "ELSEWHERE", set())
    assert site.undocumented() == []
    monkeypatch.setattr(site, "public", lambda: ["colonnade.run.sync.periodic.Elastic"])
    assert site.undocumented() == [
        f"colonnade.run.sync.periodic.Elastic.{name}" for name in ("problems", "engine")
    ]


def test_links_lead_to_pages_of_the_site(site):
    assert site.outward("[a](../benchmarks/width/README.md) [b](../examples/02_basics/)") == (
        "[a](benchmarks/width/README.md) [b](examples/02_basics.md)"
    )
    assert site.outward("[a](../benchmarks/prediction/machine.py) [b](../tests/cards/README.md)") == (
        "[a](benchmarks/prediction/README.md) [b](tests/cards/README.md)"
    )
    assert site.inward("[a](docs/tuning.md#onednn) [b](examples/08_keras_fit/after.py)", "docs/") == (
        "[a](tuning.md#onednn) [b](examples/08_keras_fit.md)"
    )


def test_every_page_is_in_the_navigation():
    listed = re.findall(r": ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    made = {"index.md", "api.md", "changelog.md", "contributing.md", "examples/index.md"}
    assert sorted(listed) == sorted({path.name for path in (ROOT / "docs").glob("*.md")} | made)


def test_no_link_of_any_page_is_broken(site):
    """What the build looks at too, which takes long."""
    written = {path.name: site.outward(path.read_text()) for path in (ROOT / "docs").glob("*.md")}
    pages = {**written, **site.made()}
    others = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*")} | {site.REPORT}
    others |= {str(path.relative_to(ROOT)) for path in (ROOT / "benchmarks").glob("*/*.png")}
    broken = []
    for name, text in pages.items():
        for target in re.findall(
            r"\]\(([^)\s#]+)(?:#[^)]*)?\)", re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.S)
        ):
            if not target.startswith(("http:", "https:", "mailto:")):
                path = os.path.normpath(os.path.join(os.path.dirname(name), target))
                broken += [(name, target)] * (path not in pages and path not in others)
    assert broken == []


def build(folder):
    # Not quiet: MkDocs would not count its warnings.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder / "site")]
    return run(command, cwd=folder, NO_MKDOCS_2_WARNING="1", PYTHONPATH=str(ROOT / "src"))


@pytest.fixture
def copied(tmp_path):
    """The repository's pages, to be broken."""
    for name in ("docs", "examples", "benchmarks", "src"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tests" / "cards").mkdir(parents=True)
    for name in ("mkdocs.yml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "tests/cards/README.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.long
def test_the_site_is_built_and_opens_from_files(copied):
    done = build(copied)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    with chromium() as browser:
        page = browser.new_page()
        requests = []
        page.on("request", lambda request: requests.append(request.url))
        page.goto((copied / "site" / "report.html").as_uri())
        assert page.locator("h1").inner_text().startswith("Where the time went")
        page.goto((copied / "site" / "report_example.html").as_uri())
        page.wait_for_function("document.documentElement.dataset.drawn >= 5", timeout=60_000)
        assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []


@pytest.mark.long
def test_a_broken_link_ends_the_build(copied):
    with (copied / "docs" / "tuning.md").open("a") as page:
        page.write("\n[nowhere](nowhere.md)\n")
    done = build(copied)
    assert done.returncode != 0
    assert "nowhere.md" in done.stderr
