"""Lets Griffe take `Example:` in a docstring for what it calls `Examples:`, whose code is shown as code."""

import re
from typing import Any

import griffe


class ExamplesAsCode(griffe.Extension):
    """An extension of Griffe, named in mkdocs.yml."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.M)
