"""The section `tpu` compiles for TPUs where it can, says what it needs, and its page is current."""

import importlib.util
import json

import jax
import pytest

from benchmarks.__main__ import main
from benchmarks.sections import tpu
from benchmarks.subjects.tpu import REASONS, ROWS
from benchmarks.tables import page


@pytest.fixture
def run(tmp_path):
    cache = jax.config.jax_enable_compilation_cache
    yield lambda: main(["tpu", "--quick", "--out", str(tmp_path)])
    jax.config.update("jax_enable_compilation_cache", cache)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu")
def test_two_steps_move_the_least(run, tmp_path):
    assert run() == 0
    cases = json.loads((tmp_path / "tpu.json").read_text())["cases"]
    assert [case["name"] for case in cases] == ["adamw", "sgd"]
    assert [case["least"] for case in cases] == [7.0, 5.0]
    for case in cases:
        assert case["moved"] <= 1.01 and case["temp"] <= 0.01 and case["optax"]["moved"] <= 1.01
    assert (tmp_path / "tpu.png").read_bytes()[:4] == b"\x89PNG"


def test_without_the_compiler_one_line_says_what_to_install(run, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert run() == 2
    said = capsys.readouterr().err
    assert said.strip().count("\n") == 0 and "make bench ARGS=tpu" in said


def test_the_page_shows_the_results():
    cases = json.loads(tpu.DATA.read_text())["cases"]
    assert {case["name"] for case in cases} <= set(ROWS), "run make bench ARGS=tpu"
    text = page.TPU_PAGE.read_text()
    assert text == page.page(text, tpu.DATA.parent), "run python -m benchmarks.tables.page"
    named = [name for _, names in REASONS.values() for name in names]
    assert len(named) == len(set(named)) and set(named) <= set(ROWS)
