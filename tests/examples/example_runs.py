"""Runs of the examples that tests of several examples share."""

import re


def refused(example, capsys, *argv, code=2):
    """Run an example that must refuse its arguments in one line; return that line."""
    assert example.main([str(a) for a in argv]) == code
    message = capsys.readouterr().err
    assert re.fullmatch(rf"{example.__name__}\.py: [^\n]+\n", message), message
    return message


def cells(said):
    """The table that an example has printed: what stands in its rows, by their names."""
    return dict(re.findall(r"│ ([a-z][^│]*?) +│ ([^│]+?) +│", said))
