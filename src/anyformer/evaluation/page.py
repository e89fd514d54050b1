"""Small pieces of HTML: all text from data is escaped here and nowhere else."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape, unescape
from typing import Any

from anyformer.evaluation.style import style_sheet
from anyformer.evaluation.svg import number

Cell = tuple[str, str]  # escaped HTML, and the CSS class of its cell


def words(value: Any) -> str:
    """Any plain value as escaped text: numbers formatted, lists with commas, mappings as name: value."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return number(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{escape(str(key))}: {words(item)}" for key, item in value.items()) or "–"
    if isinstance(value, list | tuple):
        return ", ".join(words(item) for item in value) or "–"
    return escape(str(value))


def table(head: Sequence[str], rows: Iterable[Sequence[Sequence[str]]], caption: str = "", class_: str = "") -> str:
    """A table that scrolls if too wide; the first cell of a row is its header. Cells are HTML."""
    title = f"<caption>{caption}</caption>" if caption else ""
    listed = [list(row) for row in rows]
    # Headers of numeric columns are right-aligned like their cells.
    right = [any(not isinstance(row[i], str) and row[i][1] == "n" for row in listed) for i in range(len(head))]
    top = "".join(
        f'<th scope="col"{attribute("n" if n else "")}>{name}</th>' for name, n in zip(head, right, strict=True)
    )
    body = "".join(f"<tr>{''.join(cell(one, first=i == 0) for i, one in enumerate(row))}</tr>" for row in listed)
    name = unescape(f"table: {caption or ', '.join(part for part in head if part)}")
    return (
        f'<div class="scroll" role="group" tabindex="0" aria-label="{escape(name)}"><table{attribute(class_)}>{title}'
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def cell(content: Sequence[str], *, first: bool) -> str:
    """One cell; numbers are right-aligned by their CSS class."""
    inside, class_ = (content, "") if isinstance(content, str) else content
    return f'<th scope="row"{attribute(class_)}>{inside}</th>' if first else f"<td{attribute(class_)}>{inside}</td>"


def attribute(class_: str) -> str:
    """A class attribute, or ""."""
    return f' class="{class_}"' if class_ else ""


def figures(value: Any) -> Cell:
    """A right-aligned number in a cell, with as many decimals as its neighbours."""
    if isinstance(value, float) and 0.001 <= abs(value) < 1000:
        return (f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"), "n"
    return words(value), "n"


def section(name: str, title: str, inside: str) -> str:
    """A section of the page with its heading; "" if it is empty."""
    return (
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{title}</h2>{inside}</section>'
        if inside
        else ""
    )


def picture(drawn: str, caption: str) -> str:
    """A figure with its caption."""
    return f"<figure>{drawn}<figcaption>{caption}</figcaption></figure>"


def image(png: bytes, alt: str) -> str:
    """An embedded PNG file; "" without data."""
    data = base64.b64encode(png).decode("ascii")
    return f'<img src="data:image/png;base64,{data}" alt="{escape(alt)}">' if png else ""


def fold(title: str, inside: str, *, open_: bool = False) -> str:
    """A collapsible section."""
    return f"<details{' open' if open_ else ''}><summary>{title}</summary>{inside}</details>" if inside else ""


def preformat(text: str) -> str:
    """Preformatted text."""
    return f'<pre tabindex="0">{escape(text)}</pre>'


def pairs(entries: Mapping[str, Any]) -> str:
    """Names and values as a list; nested names are joined by dots."""
    flat: dict[str, Any] = {}

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, Mapping) and value:
            for key, item in value.items():
                add(f"{prefix}.{key}" if prefix else str(key), item)
        else:
            flat[prefix] = value

    add("", entries)
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{words(value)}</dd>" for name, value in flat.items() if name)
    return f"<dl>{rows}</dl>" if rows else ""


def document(title: str, head: str, links: Iterable[tuple[str, str]], body: str, foot: str) -> str:
    """The whole page: one file, no scripts, no external resources."""
    navigation = "".join(f'<a href="#{name}">{words_}</a>' for name, words_ in links)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>
{style_sheet()}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the results</a>
<header>{head}</header>
<nav aria-label="Parts of this report">{navigation}</nav>
<main id="main">{body}</main>
<footer>{foot}</footer>
</body>
</html>
"""
