"""What mkdocs does with each page besides: short code in a sentence is marked, so that a narrow page need not break it."""

from __future__ import annotations

import re
from html import unescape
from typing import Final

SHORT, FITS = 16, 34
"""Characters of code that a cell of a table holds in one line, and a sentence, on a telephone."""
_INLINE: Final = re.compile(r"<code>([^<\n]*)</code>")


def on_page_content(html: str, **_: object) -> str:
    """The page with classes of short code. A block of code has lines, and stays as it is.

    >>> on_page_content("<p>say <code>--tp 2</code></p>")
    '<p>say <code class="short fits">--tp 2</code></p>'
    """

    def marked(found: re.Match[str]) -> str:
        length = len(unescape(found[1]))
        names = [name for name, most in (("short", SHORT), ("fits", FITS)) if length <= most]
        return f'<code class="{" ".join(names)}">{found[1]}</code>' if names else found[0]

    return _INLINE.sub(marked, html)
