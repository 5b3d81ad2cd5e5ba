import jinja2
import pytest

from colonnade.show import page


@pytest.fixture
def templates(monkeypatch):
    """Templates of the test's own in place of those of the package."""
    texts = {}
    monkeypatch.setattr(page, "PackageLoader", lambda _: jinja2.DictLoader(texts))
    return texts


def test_what_is_put_into_a_page_is_escaped_and_into_a_summary_is_not(templates):
    templates.update({"a.html": "<b>{{ what }}</b>\n", "a.md": "**{{ what }}**\n"})
    assert page.render("a.html", what="<script>") == "<b>&lt;script&gt;</b>\n"
    assert page.render("a.md", what="a < b") == "**a < b**\n"


def test_what_is_missing_is_an_error_and_no_gap(templates):
    templates["a.md"] = "{{ what }}"
    with pytest.raises(jinja2.UndefinedError, match="what"):
        page.render("a.md")


def test_lines_that_steer_leave_no_blank_lines(templates):
    templates["a.md"] = "{% for i in rows %}\n  {% if i %}\n{{ i }}\n  {% endif %}\n{% endfor %}\n"
    assert page.render("a.md", rows=[1, 0, 2]) == "1\n2\n"
