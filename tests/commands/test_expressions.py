"""`describe` and `plot` on the command line, and the expressions that they read."""

import json
import math

import jax.numpy as jnp
import pytest

import gradxform as gx
from gradxform.commands.expressions import ExpressionError, read_expression
from tests.commands.test_command_line import refused, run

EXPRESSIONS = {
    "adamw(1e-3)": gx.adamw(1e-3),
    "gx.sgd(learning_rate=0.1, momentum=.9, nesterov=True)": gx.sgd(0.1, 0.9, True),
    " chain(clip_by_global_norm(1),\n adam(1e-3)) ": gx.chain(
        gx.clip_by_global_norm(1.0), gx.adam(1e-3)
    ),
    "join_schedules([0.1, linear_schedule(1, 0, 9)], (5,))": gx.join_schedules(
        (0.1, gx.linear_schedule(1.0, 0.0, 9)), (5,)
    ),
    "piecewise_constant_schedule(1.0, {3: 0.5})": gx.piecewise_constant_schedule(1.0, {3: 0.5}),
    "adam(1, mu_dtype=jnp.bfloat16)": gx.adam(1.0, mu_dtype=jnp.bfloat16),
    "adam(1, mu_dtype='bfloat16')": gx.adam(1.0, mu_dtype=jnp.bfloat16),
    "clip(float('inf'))": gx.clip(math.inf),
    "ndim_at_least(2) & ~path_matches('a$') | ndim_at_least(1)": (
        gx.ndim_at_least(2) & ~gx.path_matches("a$") | gx.ndim_at_least(1)
    ),
    "inject_hyperparams(adamw)(learning_rate=0.1)": gx.inject_hyperparams(gx.adamw)(
        learning_rate=0.1
    ),
    "label_by(('matrix', ndim_at_least(2)), ('rest', True))": gx.label_by(
        ("matrix", gx.ndim_at_least(2)), ("rest", True)
    ),
    "-3": -3,
}


@pytest.mark.parametrize("text", list(EXPRESSIONS))
def test_an_expression_is_the_value_that_the_code_would_be(text):
    assert read_expression(text) == EXPRESSIONS[text]


@pytest.mark.parametrize(
    "tx", [gx.adamw(gx.cosine_decay_schedule(0.1, 9), mask=gx.ndim_at_least(2)), gx.clip(math.inf)]
)
def test_what_a_transform_prints_can_be_read(tx):
    assert read_expression(repr(tx)) == tx


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the expression is empty"),
        ("adamw(", "'(' was never closed at column 6"),
        ("adamw(0.1, 0.1 0.2)", "is not an expression"),
        ("a = 3", "is not an expression"),
        ("adam(" * 3000, "'adam(adam(adam(adam"),
        (f"adam({'x' * 9000} 1", "is not an expression"),
        ("adamw(linear_schedul(1, 0, 3))", "at column 7, 'linear_schedul': nothing is registered"),
        ("adamw(linear_schedul(1, 0, 3))", "Did you mean 'linear_schedule'"),
        ("adamw(0.1, b11=2)", "at column 12, 'b11=2': adamw takes learning_rate, b1"),
        ("adamw(0.1, b11=2)", "Did you mean 'b1'"),
        ("chain(adam(0.1), adam(1, b1=2))", "at column 18, 'adam(1, b1=2)': scale_by_adam: b1"),
        ("adam()", "at column 1, 'adam()': adam: missing a required argument: 'learning_rate'"),
        ("adam(b1=0.9, b1=0.8)", "at column 14, 'b1=0.8': this argument is given twice"),
        ("__import__('os')", "nothing is registered"),
        ("__import__('os').system('x')", "not the name of a part"),
        ("adam(0.1).__class__", "not the name of a part"),
        ("os.path", "not the name of a part"),
        ("jnp.zeros(3)", "not the name of a part"),
        ("[x for x in (1, 2)]", "only calls of registered names"),
        ("lambda n: 0.1", "only calls of registered names"),
        ("1 + 1", "only calls of registered names"),
        ("f'{adam}'", "only calls of registered names"),
        ("2 & 3", "at column 1, '2': &, | and ~ are for masks"),
        ("-'a'", "a sign goes before a number"),
        ("-True", "a sign goes before a number"),
        ("adam(*[1])", "at column 6, '*[1]': write the arguments"),
        ("adam(**{'b1': 1})", "write the arguments"),
        ("{**{}}", "write the entries of the dict"),
        ("{[1]: 2}", "a list cannot be a key"),
        ("{1: 2, 1: 3}", "at column 8, '1': this key is given twice"),
        ("adam(0.1)(0.2)", "only inject_hyperparams returns something to be called"),
        ("adam(1" + "0" * 400 + ")", "beyond the range of a float"),
        ("float('nan')", "float is for 'inf' and '-inf' only"),
        ("inf", "write it as float('inf')"),
        ("fourth_root(2)", "a function, which is passed by its name"),
        ("chain(" * 80 + ")" * 80, "nested more than 60 deep"),
        ("chain(" * 150 + ")" * 150, ""),  # too deep for the parser of some versions
        ("chain(" * 5000 + ")" * 5000, "longer than 20000 characters"),
        ("adamw('ä', bb=1)", "at column 12, 'bb=1'"),
    ],
)
def test_anything_else_is_an_error_that_points_to_the_word(text, words):
    with pytest.raises(ExpressionError) as info:
        read_expression(text)
    message = str(info.value)
    assert words in message and "\n" not in message and len(message) < 700


def test_describe_prints_the_parts_and_their_bytes(capsys):
    argv = ("describe", "adamw(1e-3)", "--params", "a/w=30x20,a/b=20:bfloat16,c=()")
    params = {
        "a": {"w": jnp.zeros((30, 20)), "b": jnp.zeros(20, jnp.bfloat16)},
        "c": jnp.zeros(()),
    }
    assert run(capsys, *argv) == f"{gx.describe(gx.adamw(1e-3), params)}\n"
    assert run(capsys, "describe", "adamw(1e-3)") == f"{gx.describe(gx.adamw(1e-3))}\n"
    data = json.loads(run(capsys, *argv, "--json"))
    assert data["param_leaves"] == 3 and data["rows"][1]["hyperparameters"]["b1"] == "0.9"
    assert data["rows"][1]["slots"][1] == {
        "name": "mu", "dtypes": ["float32"], "arrays": 3, "bytes": 4 * 621, "device_bytes": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "kind"),
    [
        (("warmup_cosine_decay_schedule(0, 1e-3, 9, 90)", "--steps", "90"), "schedule"),
        (("linear_schedule(1, 0, 9)", "0.5", "--dark", "--title", "Two"), "schedule"),
        (("adam(0.1)", "sgd(0.01)", "--surface", "saddle", "--steps", "5"), "paths"),
        (("adam(0.1)", "--params", "w=3x4"), "state_memory"),
        (("metrics.csv", "--keys", "loss,rate"), "training"),
    ],
)
def test_plot_draws_into_a_file(argv, kind, capsys, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    called = []
    real = getattr(gx.plot, kind)
    monkeypatch.setattr(gx.plot, kind, lambda *a, **k: called.append((a, k)) or real(*a, **k))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "metrics.csv").write_text("step,loss,rate\n1,2,3\n2,1,2\n")
    assert run(capsys, "plot", *argv, "--out", "s.png") == "s.png: written\n"
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG") and len(called) == 1
    (args, options), steps = called[0], [*argv, "--steps", "1000"]
    if kind == "schedule":
        assert args[1] == int(steps[steps.index("--steps") + 1])
        assert options == {"title": "Two" if "Two" in argv else None, "dark": "--dark" in argv}
    if kind == "paths":
        assert list(args[0]) == ["adam(0.1)", "sgd(0.01)"] and options["steps"] == 5


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("plot adam(0.1)", "required: --out"),
        ("plot adam(0.1) --out x.xyz", "xyz"),
        ("plot adam(0.1) --out /absent/x.png", "/absent/x.png: No such file or directory."),
        ("plot adam(0.1) --out x.png --steps 0", "must be a whole number from 1, got '0'"),
        ("plot adam(0.1) 0.5 --out x.png", "'0.5' cannot be drawn at all"),
        ("plot adam(0.1) constant_schedule(1) --out x.png", "cannot be drawn with optimizers"),
        ("plot ndim_at_least(2) --out x.png", "cannot be drawn at all; draw schedules or"),
        ("plot 0.5 --out x.png --surface saddle", "--surface does not go with schedules"),
        ("plot adam(0.1) --out x.png --keys a", "--keys does not go with optimizers"),
        ("plot absent.csv --out x.png", "absent.csv: No such file or directory."),
        ("plot a.csv b.csv --out x.png", "draw a CSV file alone"),
        ("plot adam(0.1) sgd(0.1) --params w=3 --out x.png", "--params goes with one optimizer"),
        ("plot admw(0.1) --out x.png", "at column 1, 'admw': nothing is registered"),
        ("describe adma(0.1)", "at column 1, 'adma': nothing is registered"),
        ("describe constant_schedule(1)", "must have init and update"),
        ("describe adam(0.1) --params w", "'w' must be PATH=SHAPE, such as"),
        ("describe adam(0.1) --params w=3y4", "the shape in 'w=3y4' must be sizes"),
        ("describe adam(0.1) --params w=3:flout32", "no dtype 'flout32'"),
        ("describe adam(0.1) --params w=3:int32", "int32"),
        ("describe adam(0.1) --params w=3,w=4", "'w' is given twice"),
        ("describe adam(0.1) --params w=3,w/b=4", "'w/b=4' is inside of an array"),
        ("describe adam(0.1) --params ,", "needs shapes, such as"),
        ("describe adam(0.1) --jsn", "Did you mean '--json'?"),
    ],
)
def test_a_wrong_argument_is_one_line(argv, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert words in refused(capsys, *argv.split())
