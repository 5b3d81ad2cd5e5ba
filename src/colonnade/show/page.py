"""Fills templates of HTML pages and Markdown; a page needs no other file and no network."""

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape


def render(template: str, **values: Any) -> str:
    """A template of `show/templates`, filled in; what is put into a page of HTML is escaped."""
    environment = Environment(
        loader=PackageLoader("colonnade.show"),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(**values)
