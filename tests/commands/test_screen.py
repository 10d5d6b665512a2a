"""Tables of `describe` and `list` in notebooks, in terminals and in pipes."""

import html.parser
import io
import sys

import jax.numpy as jnp
import pytest

import gradxform as gx
from gradxform.commands import main


class Cells(html.parser.HTMLParser):
    """The texts in the cells of all tables; every tag must be closed."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.open = [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag != "br":
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def test_a_transform_and_a_description_are_tables_in_a_notebook():
    tx = gx.chain(gx.masked(gx.adam(1e-3), gx.path_matches("<b>&")), gx.scale(2.0))
    rows = Cells(tx._repr_html_()).rows
    assert rows[0] == ["part", "hyperparameters"] and rows[1] == ["chain", ""]
    assert ["scale", "step_size=2.0"] in rows
    [masked] = [row for row in rows if row[0] == "masked"]
    assert "<b>&" in masked[1] and "<b>" not in tx._repr_html_()
    told = gx.describe(gx.adam(1e-3), {"w": jnp.zeros((3, 4))})
    head, _, adam, *_ = Cells(told._repr_html_()).rows
    assert head == ["part", "hyperparameters", "slot", "dtype", "bytes"]
    assert adam[0] == "scale_by_adam" and adam[2] == "countmunu"
    assert "state 100 B / parameters 48 B in 1 leaf = 2.08" in told._repr_html_()
    groups = gx.param_groups(gx.sgd(0.1), [gx.param_group("w", 0.1, label="a < b")])
    assert Cells(gx.describe(groups, {"w": jnp.zeros(3)})._repr_html_()).rows[1][0] == "a < b"


@pytest.mark.parametrize("argv", [("describe", "adam(1e-3)", "--params", "w=3"), ("list", "masks")])
def test_a_terminal_gets_rich_tables_and_a_pipe_plain_text(argv, monkeypatch, capsys):
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert main(argv) == 0
    plain = capsys.readouterr().out
    assert "\x1b[" not in plain
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(argv) == 0
    said = terminal.getvalue()
    assert "\x1b[" in said and "─" in said
    for word in ("scale_by_adam", "mu") if argv[0] == "describe" else ("masks (", "any_of"):
        assert word in plain and word in said
    monkeypatch.setitem(sys.modules, "rich.console", None)
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(argv) == 0 and terminal.getvalue() == plain
