"""Names say one thing: no two classes of the package have the same one."""

import ast
from collections import Counter
from pathlib import Path

import colonnade

SOURCE = Path(colonnade.__file__).parent


def names(kind):
    for path in SOURCE.rglob("*.py"):
        yield from (n for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, kind))


def test_no_two_classes_have_the_same_name():
    counts = Counter(node.name for node in names(ast.ClassDef))
    assert {name for name, count in counts.items() if count > 1} == set()


def test_modules_open_with_one_line_that_says_what_they_do():
    for path in SOURCE.rglob("*.py"):
        first = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")), clean=True) or ""
        assert first.partition("\n")[0].endswith("."), f"{path.relative_to(SOURCE)}: {first[:80]!r}"
