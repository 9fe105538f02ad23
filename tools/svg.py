"""Pictures for the pages, as SVG that follows the reader's light or dark setting.

python -m tools.svg docs/images/NAME.svg < session.txt    draws a terminal; input begins with "$ "
"""

import sys
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Final

# The background is opaque, so that text is readable even if the page's theme differs from the system's.
_STYLE: Final = """
.card{fill:#fff;stroke:#d0d7de} .t{fill:#1f2328} .m{fill:#59636e} .box{fill:#f6f8fa;stroke:#afb8c1}
.a{fill:#e8590c} .b{fill:#868e96} .c{fill:#1c7ed6}
.line{stroke:#59636e;fill:none} .grid{stroke:#d0d7de} .head{fill:#59636e}
@media (prefers-color-scheme:dark){
.card{fill:#0d1117;stroke:#3d444d} .t{fill:#f0f6fc} .m{fill:#9198a1} .box{fill:#151b23;stroke:#3d444d}
.a{fill:#ff922b} .b{fill:#868e96} .c{fill:#4dabf7}
.line{stroke:#9198a1} .grid{stroke:#3d444d} .head{fill:#9198a1}}
text{font:13px system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif}
.h{font-weight:600} .s{font-size:11.5px}
.mono{font-family:ui-monospace,"DejaVu Sans Mono",monospace;font-size:12px;white-space:pre}
"""


def document(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """Return an SVG document: the parts on an opaque background. title: the text for screen readers.

    width and height are in pixels.
    """
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{escape(title)}">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n"
        f'<rect class="card" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def text(x: float, y: float, words: str, kind: str = "t", anchor: str = "start") -> str:
    """Return a line of text. kind: CSS classes from `_STYLE`, such as "m s"."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def terminal(lines: list[str]) -> str:
    """Return a picture of a terminal. Lines that begin with the prompt "$ " are the user's input."""
    width = 24 + round(7.3 * max(60, *map(len, lines)))
    parts = [f'<circle class="b" cx="{18 + 16 * number}" cy="16" r="4.5"/>' for number in range(3)]
    for row, line in enumerate(lines):
        parts.append(text(14, 44 + 17 * row, line, "mono t h" if line.startswith("$ ") else "mono m"))
    return document(
        width,
        44 + 17 * len(lines),
        "A terminal: " + "; ".join(line[2:] for line in lines if line.startswith("$ ")),
        parts,
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(terminal(sys.stdin.read().rstrip().splitlines()), "utf-8")
