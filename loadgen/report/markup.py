"""Pieces of an HTML page that stands alone: one file, its style inside, no script, nothing fetched; light and dark."""

from collections.abc import Iterable, Sequence
from html import escape as escape

from loadgen.report.plots import Plot

STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --panel: #f6f7f9; --ink: #1c2430; --soft: #5b6675; --grid: #d9dee5;
  --faint: #9aa5b1; --good: #1a7f4b; --bad: #c0392b; --s1: #0b62a8; --s2: #c4620a; --s3: #7b3f9e; --s4: #00827f;
  --s5: #a8325e; --s6: #6b7a12; --s7: #3f5bd0; --s8: #8a5a2b; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181d; --panel: #1c2229; --ink: #e4e9ef; --soft: #9ba7b4;
  --grid: #343d47; --faint: #66727f; --good: #4cc38a; --bad: #ff7a6b; --s1: #5eb0ef; --s2: #f5a259; --s3: #c79be8;
  --s4: #4fc9c3; --s5: #f08bb0; --s6: #c0cc5a; --s7: #93a6ff; --s8: #cfa274; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1280px; padding: 1.5rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.35rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2.25rem 0 .5rem; }
p { margin: .35rem 0; } .soft { color: var(--soft); } .good { color: var(--good); } .bad { color: var(--bad); }
.verdict { font-size: 1.1rem; font-weight: 600; margin: .75rem 0; padding: .6rem .9rem; background: var(--panel);
  border-left: 4px solid currentColor; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: .75rem; margin: 1rem 0; }
.tile { background: var(--panel); padding: .6rem .8rem; border-radius: 6px; }
.tile b { display: block; font-size: 1.3rem; font-variant-numeric: tabular-nums; white-space: nowrap; }
.wide { overflow-x: auto; } .plots + .wide { margin-top: 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .3rem .7rem .3rem 0; text-align: right; border-bottom: 1px solid var(--grid); white-space: nowrap; }
th { color: var(--soft); font-weight: 500; vertical-align: bottom; white-space: normal; }
th.text, td.text { text-align: left; } td.said { min-width: 8rem; white-space: normal; overflow-wrap: anywhere; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 500px), 1fr)); gap: 1.25rem; align-items: start; }
figure { margin: 0; background: var(--panel); border-radius: 6px; padding: .8rem .8rem .4rem; }
figure h3 { margin: 0; font-size: 1rem; } figcaption { color: var(--soft); font-size: .85rem; }
figure svg { width: 100%; height: auto; display: block; margin-top: .4rem; }
ul { padding-left: 1.1rem; margin: .35rem 0; } summary { cursor: pointer; color: var(--soft); margin: .5rem 0; }
pre { background: var(--panel); padding: .8rem; overflow-x: auto; font-size: .8rem; white-space: pre-wrap;
  overflow-wrap: anywhere; border-radius: 6px; }
"""


def document(title: str, body: Iterable[str]) -> str:
    """The whole page."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], texts: Sequence[int] = (0,)) -> str:
    """`texts` are the columns of words. The last of them may be long."""
    said = len(headings) - 1

    def cell(tag: str, place: int, value: str) -> str:
        kind = "" if place not in texts else ' class="text said"' if tag == "td" and place == said else ' class="text"'
        return f"<{tag}{kind}>{escape(value)}</{tag}>"

    def line(tag: str, values: Sequence[str]) -> str:
        return "<tr>" + "".join(cell(tag, place, value) for place, value in enumerate(values)) + "</tr>"

    body = "\n".join(line("td", row) for row in rows)
    return f'<div class="wide"><table>\n<thead>{line("th", headings)}</thead>\n<tbody>\n{body}\n</tbody></table></div>'


def tiles(values: Iterable[tuple[str, str]]) -> str:
    """Numbers that are looked for first."""
    made = "".join(
        f'<div class="tile"><span class="soft">{escape(name)}</span><b>{escape(value)}</b></div>'
        for name, value in values
    )
    return f'<div class="tiles">{made}</div>'


def figures(plots: Iterable[Plot]) -> str:
    """Plots beside each other where there is room."""
    return '<div class="plots">' + "\n".join(map(_figure, plots)) + "</div>"


def _figure(plot: Plot) -> str:
    svg = plot.svg.replace("<svg", f'<svg role="img" aria-label="{escape(plot.title)}"', 1)
    return f"<figure><h3>{escape(plot.title)}</h3><figcaption>{escape(plot.caption)}</figcaption>\n{svg}\n</figure>"


def paragraph(text: str, kind: str = "") -> str:
    """`kind`: the classes."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def folded(title: str, text: str) -> str:
    """What few want to see."""
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"
