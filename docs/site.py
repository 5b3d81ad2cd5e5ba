"""Makes the pages of the site that are not in this folder: start, API, examples, benchmarks, a report.

A hook of MkDocs (see mkdocs.yml). Links that lead out of this folder in the repository lead to these pages
in the site. A public name without a docstring ends the build.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

import colonnade
from colonnade.describe.run_folder import read_run
from colonnade.show.report.report import rendered

ROOT = Path(__file__).parent.parent
REPORT = "report_example.html"
FAKE_CARDS = "tests/cards/README.md"
# Methods that are documented where they come from: Keras's layers, and the protocol of `sync=`.
ELSEWHERE = {"build", "call", "compute_output_spec", "get_config", "problems", "engine"}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made here."""
    missing = undocumented()
    if missing:
        raise PluginError(f"public names without a docstring: {', '.join(missing)}")
    for path, text in made().items():
        files.append(File.generated(config, path, content=text))
    for picture in (ROOT / "benchmarks").glob("*/*.png"):
        name = str(picture.relative_to(ROOT))
        files.append(File.generated(config, name, abs_src_path=str(picture)))
    run = read_run(ROOT / "docs" / "report_example")
    last = max(float(line["time"]) for line in run.progress)
    files.append(File.generated(config, REPORT, content=rendered([run], last + 1)))
    return files


def made() -> dict[str, str]:
    """The pages that are made here, by their path in the site."""
    return {
        "index.md": inward((ROOT / "README.md").read_text(), "docs/"),
        "changelog.md": inward((ROOT / "CHANGELOG.md").read_text(), "docs/"),
        "contributing.md": inward((ROOT / "CONTRIBUTING.md").read_text(), "docs/"),
        "api.md": api(),
        FAKE_CARDS: (ROOT / FAKE_CARDS).read_text(),
        **dict(examples()),
        **dict(benchmarks()),
    }


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Let links that lead out of the folder lead to the pages that are made here."""
    here = page.file.src_uri
    rooted = ("api.md", "index.md", "changelog.md", "contributing.md", FAKE_CARDS)
    return markdown if here in rooted or here.startswith("benchmarks/") else outward(markdown)


def outward(text: str) -> str:
    """Of a page of docs/: ../benchmarks/x is a page of the site beside it."""
    text = re.sub(r"\]\(\.\./(examples/\w+)/?\)", r"](\1.md)", text)
    text = re.sub(r"\]\(\.\./(examples/\w+)/\w+\.py\)", r"](\1.md)", text)
    text = re.sub(r"\]\(\.\./(benchmarks/\w+)/\w+\.py\)", r"](\1/README.md)", text)
    return re.sub(r"\]\(\.\./((?:benchmarks|tests)/[\w/]+\.\w+)", r"](\1", text)


def inward(text: str, folder: str) -> str:
    """Of a page of the repository's root: docs/x is a page of the site beside it."""
    text = re.sub(r"\]\((examples/\w+)(?:/\w+\.py)?/?\)", r"](\1.md)", text)
    text = text.replace("](examples)", "](examples/index.md)")
    text = text.replace("](LICENSE)", "](#license)").replace("](CONTRIBUTING.md)", "](contributing.md)")
    return text.replace("](CHANGELOG.md)", "](changelog.md)").replace(f"]({folder}", "](")


def api() -> str:
    """A page with every public name, from its docstring."""
    entries = [f"::: {path}" for path in public()]
    return "\n\n".join(["# API", "What `import colonnade as cn` offers, name by name.", *entries, ""])


def public() -> list[str]:
    """Where each public name is defined; those of a public module one by one."""
    package = griffe.load("colonnade", search_paths=[str(ROOT / "src")], resolve_aliases=False)
    found = []
    for name in colonnade.__all__:
        home = colonnade._HOME.get(name, "errors")
        if name in colonnade._MODULES:
            module = package[home]
            found += [f"colonnade.{home}.{inner}" for inner in map(str, module.exports or ())]
        else:
            found.append(f"colonnade.{home}.{name}")
    return found


def undocumented() -> list[str]:
    """Public names, and public methods of public classes, that have no docstring."""
    package = griffe.load("colonnade", search_paths=[str(ROOT / "src")])
    missing = []
    for path in public():
        thing = package[path.removeprefix("colonnade.")]
        if not thing.has_docstring:
            missing.append(path)
        members = thing.members.items() if thing.is_class else ()
        missing += [
            f"{path}.{name}"
            for name, member in members
            if not name.startswith("_") and name not in ELSEWHERE
            if member.is_function and not member.has_docstring
        ]
    return missing


def examples() -> Iterator[tuple[str, str]]:
    """A page for each example, the program before and after, and one that lists them."""
    listed = []
    for folder in sorted((ROOT / "examples").iterdir()):
        programs = sorted(folder.glob("*.py")) if folder.is_dir() else []
        if not programs:
            continue
        title = folder.name.partition("_")[2].replace("_", " ").capitalize()
        listed.append(f"- [{title}]({folder.name}.md)")
        parts = [f"## {path.name}\n\n```python\n{path.read_text()}```\n" for path in reversed(programs)]
        yield f"examples/{folder.name}.md", "\n".join([f"# {title}\n", *parts])
    yield "examples/index.md", "\n".join(["# Examples\n", *listed, ""])


def benchmarks() -> Iterator[tuple[str, str]]:
    """The results of each benchmark."""
    for page in sorted((ROOT / "benchmarks").glob("*/README.md")):
        text = re.sub(r"\]\(\.\./\.\./docs/", "](../../", page.read_text())
        text = re.sub(r"\]\(\.\./(\w+)/?\)", r"](../\1/README.md)", text)
        yield str(page.relative_to(ROOT)), re.sub(r"\]\((?!http)[\w./]+\.(?:py|json|csv)\)", "](#)", text)
