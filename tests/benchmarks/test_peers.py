"""Other libraries' optimizers are measured beside ours where they are installed."""

import sys

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import PartitionSpec
from rich.console import Console

import gradxform as gx
from benchmarks.__main__ import parse
from benchmarks.sections import beside
from benchmarks.subjects.cases import make_step
from benchmarks.subjects.peers import MATCHES, Match, Peer, load, one_of_each

pytestmark = pytest.mark.numeric

# Annotations as one peer writes them, in a module made for this test.
SOURCE = """
import optax
from jax.sharding import PartitionSpec

def momentum(rate, spec: PartitionSpec[str, str] = None):
    print("noise")
    return optax.sgd(rate, momentum=0.9)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a library, which is forgotten after the test."""
    (tmp_path / "peer_of_a_test.py").write_text(SOURCE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("peer_of_a_test", None)


def matched(module, ours=lambda: gx.sgd(0.1, momentum=0.9)):
    peer = Peer(module, None, "a file of this test")
    return Match("sgd", peer, ours, lambda found: found.momentum(0.1), "heavy ball")


def options(folder):
    argv = ["matrix", "--quick", "--repeats", "1", "--out", str(folder), "--peers", str(folder)]
    return parse(argv)[1]


def test_a_peer_is_measured_over_whole_periods(folder, capsys):
    row = beside.row(matched("peer_of_a_test"), options(folder))
    assert "error" not in row and "missing" not in row
    assert set(row["figures"]) == set(beside.MEASURED)
    assert all(figure["ratio"] is None or figure["ratio"] > 0 for figure in row["figures"].values())
    assert row["moved"] == pytest.approx(1, abs=1e-4)  # both compute the same
    assert not capsys.readouterr().out
    beside.show([row], Console(width=200))
    assert "peer_of_a_test, heavy ball" in capsys.readouterr().out


def test_what_is_patched_for_an_import_is_not_left_so(folder):
    load(matched("peer_of_a_test").peer, folder)
    assert not hasattr(PartitionSpec, "__class_getitem__")


def test_a_peer_that_is_missing_says_how_to_install_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", list(sys.path))
    row = beside.row(matched("a_peer_that_nobody_has"), options(tmp_path))
    assert not row["figures"]
    beside.show([row], Console(width=200))
    said = capsys.readouterr().out
    assert "not installed" in said and "a file of this test" in said


def test_a_peer_that_fails_does_not_lose_the_other_rows(folder):
    row = beside.row(matched("peer_of_a_test", ours=lambda: gx.muon(-1.0)), options(folder))
    assert not row["figures"] and row["error"].startswith("ValueError")


def test_every_rule_of_ours_takes_the_matrices():
    params, (grads, *_) = beside.drawn(beside.matrices(1, 4), 0)
    for match in MATCHES:
        tx = match.ours()
        state = jax.eval_shape(tx.init, params)
        new, after = jax.eval_shape(make_step(optax, tx), params, state, grads)
        assert jax.tree.structure(new) == jax.tree.structure(params), match.rule
        assert jax.tree.structure(after) == jax.tree.structure(state), match.rule
        # Otherwise AdamW would be measured.
        assert any(jnp.ndim(x) > 2 for x in jax.tree.leaves(state)), match.rule


def test_a_smoke_run_has_every_peer_once():
    labels = [match.peer for match in one_of_each()]
    assert len(labels) == len(set(labels)) and set(labels) == {match.peer for match in MATCHES}


def test_a_folder_of_peers_that_is_not_there_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as info:
        parse(["matrix", "--peers", str(tmp_path / "nowhere")])
    assert info.value.code == 2 and "nowhere" in capsys.readouterr().err
