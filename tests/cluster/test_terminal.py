import io

import pytest

from gnn_dist.cluster import Terminal


class Screen(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def visible(written: str) -> list[str]:
    """What stands on a screen: a carriage return goes back, later text writes over earlier."""
    lines = []
    for line in written.split("\n"):
        shown: list[str] = []
        for piece in line.split("\r"):
            shown[: len(piece)] = list(piece)
        lines.append("".join(shown).rstrip())
    return lines


@pytest.mark.parametrize(("is_terminal", "wanted"), [(True, ["kept", "3"]), (False, ["kept", ""])])
def test_a_line_is_rewritten_on_a_terminal_only(monkeypatch, is_terminal, wanted):
    screen = Screen(is_terminal)
    monkeypatch.setattr("sys.stderr", screen)
    terminal = Terminal()
    terminal.show("a long first line")
    terminal.show("2")
    terminal.keep("kept")
    terminal.show("3")
    shown = visible(screen.getvalue())
    assert shown == wanted
    terminal.clear()
    assert visible(screen.getvalue()) == ["kept", ""]


def test_a_line_that_is_rewritten_is_never_wider_than_the_terminal(monkeypatch):
    screen = Screen(True)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("COLUMNS", "20")
    Terminal().show("a line of more than twenty characters")
    assert screen.getvalue() == "\ra line of more than"
