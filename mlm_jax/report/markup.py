"""HTML that is escaped unless it says that it is HTML."""

import html

VOID = ("meta", "input")  # elements that have no end


class Html(str):
    """A piece of finished HTML."""


def escape(value: object) -> Html:
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def join(*children: object, between: str = "") -> Html:
    """Children one after another; what is no `Html` is escaped, None is left out."""
    return Html(escape(between).join(escape(child) for child in children if child is not None))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """An element, as `tag("td", text, class_="number")`; an attribute that is None or False is left out."""
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
    words = [name]
    words += [f'{key}="{escape(value)}"' for key, value in given.items() if value is not None and value is not False]
    start = f"<{' '.join(words)}>"
    return Html(start if name in VOID else f"{start}{join(*children)}</{name}>")


def table(head: list, rows: list[list], class_: str = "") -> Html:
    """A table that scrolls by itself where it is too wide. A cell is a text, HTML, or a whole `td` or `th`."""

    def cells(row: list, kind: str) -> Html:
        whole = ("<td", "<th")
        return join(*(cell if isinstance(cell, Html) and cell.startswith(whole) else tag(kind, cell) for cell in row))

    body = join(*(tag("tr", cells(row, "td")) for row in rows))
    header = tag("thead", tag("tr", cells(head, "th"))) if head else None
    return tag("div", tag("table", header, tag("tbody", body), class_=class_ or None), class_="scroll", tabindex="0")
