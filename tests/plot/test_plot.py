"""Pictures: what they show, that they are not clipped, and what is refused."""

import csv
import io
import math
import pickle
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradxform as gx
from gradxform import plot
from gradxform.commands.catalog import registered_parts

pytest.importorskip("matplotlib")

SCHEDULES = {
    "constant_schedule": gx.constant_schedule(0.5),
    "cosine_decay_restarts": gx.cosine_decay_restarts(1.0, 20),
    "cosine_decay_schedule": gx.cosine_decay_schedule(1.0, 80),
    "cooldown_from": gx.cooldown_from(gx.linear_schedule(0.0, 1.0, 40), 30, 20),
    "cosine_onecycle_schedule": gx.cosine_onecycle_schedule(80, 1.0),
    "cosine_sign_decay": gx.cosine_sign_decay(80),
    "exponential_decay": gx.exponential_decay(1.0, 10, 0.5, staircase=True),
    "inverse_sqrt_decay": gx.inverse_sqrt_decay(1.0, 10),
    "inverse_time_decay": gx.inverse_time_decay(1.0, 10, 0.5),
    "join_schedules": gx.join_schedules((1.0, gx.linear_schedule(1.0, 0.0, 40)), (20,)),
    "linear_cosine_decay": gx.linear_cosine_decay(1.0, 80),
    "linear_onecycle_schedule": gx.linear_onecycle_schedule(80, 1.0),
    "linear_schedule": gx.linear_schedule(1.0, 0.1, 50),
    "linear_sign_decay": gx.linear_sign_decay(80),
    "natural_exp_decay": gx.natural_exp_decay(1.0, 10, 0.5),
    "piecewise_constant_schedule": gx.piecewise_constant_schedule(1.0, {30: 0.5, 60: 0.1}),
    "rectified_warmup_schedule": gx.rectified_warmup_schedule(),
    "piecewise_interpolate_schedule": gx.piecewise_interpolate_schedule("linear", 1.0, {50: 0.1}),
    "polynomial_schedule": gx.polynomial_schedule(1.0, 0.1, 2, 50),
    "product_schedule": gx.product_schedule(0.5, gx.linear_schedule(1.0, 0.0, 80)),
    "restart_sign_decay": gx.restart_sign_decay(80),
    "cyclic_schedule": gx.cyclic_schedule(0.1, 1.0, 20, "triangular2"),
    "warmup_constant_schedule": gx.warmup_constant_schedule(0.0, 1.0, 20),
    "warmup_cosine_decay_schedule": gx.warmup_cosine_decay_schedule(0.0, 1e-3, 10, 100),
    "warmup_exponential_decay_schedule": gx.warmup_exponential_decay_schedule(
        0.0, 1.0, 10, 10, 0.5
    ),
    "warmup_stable_decay_schedule": gx.warmup_stable_decay_schedule(0.0, 1.0, 10, 20, 80),
}
OPTIMIZERS = {
    "adabelief": gx.adabelief(0.1),
    "adadelta": gx.adadelta(1.0),
    "adam": gx.adam(gx.linear_schedule(0.2, 0.0, 60)),
    "adamw": gx.adamw(0.1),
    "dadapt_adamw": gx.dadapt_adamw(1.0),
    "lbfgs": optax.lbfgs(),  # gets value, grad and value_fn
    "lion": gx.lion(0.05),
    "momo": gx.momo(0.3),  # gets value
    "muon": gx.chain(gx.scale_by_sign(), gx.scale_by_learning_rate(0.1)),
    "optax.sgd": optax.sgd(0.02),  # takes no extra argument
    "polyak_sgd": gx.polyak_sgd(),
    "rmsprop": gx.rmsprop(0.1),
    "schedule_free_adamw": gx.schedule_free_adamw(0.3),
    "sgd": gx.sgd(0.02, momentum=0.9),
    "sophia": gx.sophia(0.1),  # gets obj_fn
}
OPTIMIZERS["sign"] = OPTIMIZERS.pop("muon")
PARAMS = {"kernel": jnp.zeros((30, 20)), "bias": jnp.zeros(20)}


def texts_of(figure):
    """All texts that a reader sees; everything that is drawn must be inside of the figure."""
    from matplotlib.text import Text

    figure.canvas.draw()
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert box.x0 >= -0.02 and box.y0 >= -0.02, box
    assert box.x1 <= width + 0.02 and box.y1 <= height + 0.02, box
    texts = figure.findobj(Text)
    return [text.get_text() for text in texts if text.get_visible() and text.get_text()]


def lines_of(axes):
    return {line.get_label(): line.get_xydata() for line in axes.get_lines()}


# ------------------------------------------------------------------------------------- schedules


def test_the_schedules_are_all_that_are_registered():
    assert sorted(SCHEDULES) == [e.name for e in registered_parts("schedules") if ":" not in e.name]


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_each_schedule_is_drawn_with_its_values(name):
    figure = plot.schedule(SCHEDULES[name], 100, ylabel="learning rate")
    [axes] = figure.axes
    [points] = lines_of(axes).values()
    assert points[:, 0].tolist() == list(range(101))
    expected = [float(SCHEDULES[name](i)) for i in (0, 33, 100)]
    assert points[[0, 33, 100], 1] == pytest.approx(expected, rel=1e-6, abs=1e-7)
    said = texts_of(figure)
    assert "step" in said and "learning rate" in said
    assert any(text.startswith(name) for text in said)


def test_schedules_are_compared_and_long_ones_are_sampled():
    figure = plot.schedule({"a": 0.1, "b": lambda n: 1 / (1 + n)}, 10**8, title="Two", dark=True)
    lines = lines_of(figure.axes[0])
    assert set(lines) == {"a", "b"} and {"a", "b", "Two"} <= set(texts_of(figure))
    assert len(lines["a"]) == 20000 and lines["a"][-1].tolist() == [10**8, 0.1]
    twice = plot.schedule([0.1, 0.1, optax.linear_schedule(1.0, 0.0, 5)], 5)
    assert list(lines_of(twice.axes[0]))[:2] == ["0.1", "0.1 (2)"]


def test_it_draws_on_axes_of_the_caller():
    from matplotlib.figure import Figure

    mine = Figure()
    axes = mine.subplots(1, 2)
    assert plot.schedule(0.1, 5, axes[0]) is mine
    assert plot.paths(gx.sgd(0.1), steps=2, ax=axes[1]) is mine
    assert len(mine.axes) == 2 and axes[0].get_lines() and axes[1].get_lines()


def test_a_figure_is_a_picture_in_a_notebook_and_a_file(tmp_path):
    figure = plot.schedule(0.1, 5)
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert pickle.loads(pickle.dumps(figure)).axes
    figure.savefig(tmp_path / "x.svg")


def test_it_does_not_use_pyplot(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # an import of it fails
    plot.paths(gx.sgd(0.1), steps=2)
    plot.training(HISTORY)


# ----------------------------------------------------------------------------------------- paths


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_each_optimizer_is_drawn_on_a_named_surface(name):
    figure = plot.paths({name: OPTIMIZERS[name]}, "valley", steps=30)
    path = plot.descend(OPTIMIZERS[name], "valley", 30)
    assert path.points.shape == (31, 2) and path.losses.shape == (31,)
    assert path.losses[-1] < path.losses[0]
    drawn = lines_of(figure.axes[0])[f"{name}: {path.losses[-1]:.2g}"]
    assert drawn.tolist() == path.points.tolist()
    said = texts_of(figure)
    assert "a valley of condition 50, 30 steps" in said and "loss at the end" in said


def test_a_path_is_that_of_the_loop_written_out():
    tx, point = gx.adam(0.1), jnp.asarray(plot.SURFACES["saddle"].start)
    path = plot.descend(tx, "saddle", 5)
    state = tx.init(point)
    for i in range(5):
        loss, grad = jax.value_and_grad(plot.SURFACES["saddle"])(point)
        assert path.losses[i] == pytest.approx(float(loss), rel=1e-5)
        updates, state = tx.update(grad, state, point)
        point = gx.apply_updates(point, updates)
    assert path.points[-1] == pytest.approx(np.asarray(point), rel=1e-5)


@pytest.mark.parametrize("name", list(plot.SURFACES))
def test_the_minima_of_the_surfaces_are_minima_and_the_start_is_shown(name):
    surface = plot.SURFACES[name]
    for minimum in surface.minima:
        value, grad = jax.value_and_grad(surface)(jnp.asarray(minimum))
        assert value == 0 and float(jnp.max(jnp.abs(grad))) == 0
    assert surface.x is not None and surface.x[0] < surface.start[0] < surface.x[1]
    assert surface.y is not None and surface.y[0] < surface.start[1] < surface.y[1]
    assert f"{surface.title}, 3 steps" in texts_of(plot.paths(gx.sgd(1e-3), name, steps=3))
    assert surface in {surface}  # a plain value


def test_the_saddle_has_one():
    hessian = jax.hessian(plot.SURFACES["saddle"])(jnp.zeros(2))
    assert np.linalg.eigvalsh(hessian).tolist() == [-1.0, 1.0]
    stiffness = np.linalg.eigvalsh(jax.hessian(plot.SURFACES["valley"])(jnp.zeros(2)))
    assert stiffness[1] / stiffness[0] == pytest.approx(50, rel=1e-4)


def test_a_function_of_your_own_is_a_surface():
    def bowl(point):
        return jnp.sum(point**2) - 3.0  # below 0: the contours are those above the lowest

    figure = plot.paths([gx.sgd(0.1), gx.adam(0.1)], bowl, steps=20, start=[2, -1], dark=True)
    axes = figure.axes[0]
    assert "bowl, 20 steps" in texts_of(figure)
    assert axes.get_xlim()[1] > 2 > axes.get_xlim()[0] and axes.get_ylim()[0] < -1
    labels = [label for label in lines_of(axes) if label[0] != "_"]
    assert [label.partition(":")[0] for label in labels] == [
        "identity, scale_by_learning_rate",
        "scale_by_adam, scale_by_learning_rate",
    ]
    assert plot.descend(gx.sgd(0.1), plot.Surface(bowl, (2.0, 0.0)), 1).points[0].tolist() == [2, 0]


def test_a_path_that_diverges_is_drawn_as_far_as_it_is_finite():
    figure = plot.paths({"sgd": gx.sgd(1.0)}, "rosenbrock", steps=50)
    drawn = lines_of(figure.axes[0])["sgd: diverged"]
    assert 1 < len(drawn) < 50 and np.isfinite(drawn).all()
    hole = plot.paths(gx.sgd(1e-3), lambda v: jnp.log(v[0]) ** 2 + v[1] ** 2, steps=5, x=(-1, 2))
    assert texts_of(hole)


def test_many_optimizers_have_lines_of_their_own():
    figure = plot.paths(OPTIMIZERS, steps=3)
    handles = [line for line in figure.axes[0].get_lines() if line.get_label()[0] != "_"]
    looks = {str((line.get_color(), line._dash_pattern)) for line in handles}
    assert len(handles) == len(OPTIMIZERS) == len(looks)
    texts_of(figure)


# ---------------------------------------------------------------------------------------- memory


def test_the_bars_are_the_bytes_that_describe_says():
    tx = gx.chain(gx.clip_by_global_norm(1.0), gx.adamw(1e-3))
    figure = plot.state_memory(tx, PARAMS)
    told = gx.describe(tx, PARAMS)
    widths = [patch.get_width() for patch in figure.axes[0].patches]
    assert widths == [told.param_bytes, told.param_bytes, told.param_bytes]  # itself, mu, nu
    said = texts_of(figure)
    assert {"parameters", "scale_by_adam", "mu", "nu", "2.48 kB"} <= set(said)
    assert "state 4.96 kB = 2.00 x the parameters" in said and "count" not in said
    assert "clip_by_global_norm" not in said  # it has no state
    shapes = jax.eval_shape(lambda: PARAMS)
    assert texts_of(plot.state_memory(gx.sgd(0.1), shapes, dark=True, title="SGD"))[0] is not None
    labelled = gx.partition({"a": gx.adam(0.1), "b": optax.adam(0.1)}, {"kernel": "a", "bias": "b"})
    assert {"a: scale_by_adam", "parameters"} <= set(texts_of(plot.state_memory(labelled, PARAMS)))


# -------------------------------------------------------------------------------------- training

HISTORY = [
    {
        "step": 10 * i,
        "loss": math.exp(-i / 3),
        "gradient_norm/encoder": 1.0 + i,
        "gradient_norm/head": 2.0 + i,
        "scale": 1.0,
        "scale/min": 0.5,
        "scale/max": 1.5,
        "note": "a word",
    }
    for i in range(20)
]


def check_training(figure, step_label="step"):
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()]
    assert titles == ["loss", "gradient_norm", "scale"]
    loss, norms, scale = figure.axes[:3]
    assert loss.get_yscale() == "log" and norms.get_yscale() == "linear"
    assert set(lines_of(norms)) == {"encoder", "head"}
    assert len(scale.get_lines()) == len(scale.collections) == 1  # the mean, and a band
    assert step_label in texts_of(figure)
    return lines_of(loss)["loss"]


def test_metrics_of_any_form_give_the_same_picture(tmp_path):
    points = check_training(plot.training(HISTORY))
    assert points[:, 0].tolist() == [10 * i for i in range(20)]
    columns = {key: [row[key] for row in HISTORY] for key in HISTORY[0]}
    assert check_training(plot.training(columns, dark=True)).tolist() == points.tolist()
    path = tmp_path / "metrics.csv"
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(HISTORY[0]))
        writer.writeheader()
        writer.writerows(HISTORY)
    for form in (path, str(path)):
        assert check_training(plot.training(form)).tolist() == points.tolist()
    arrays = [{k: jnp.asarray(v) for k, v in row.items() if k != "note"} for row in HISTORY]
    check_training(plot.training(arrays))


def test_what_an_optimizer_logs_is_drawn():
    tx = gx.with_metrics(gx.inject_hyperparams(gx.adamw)(gx.linear_schedule(1e-2, 0.0, 9)))
    state, history = tx.init(PARAMS), []
    for _ in range(4):
        _, state = tx.update(jax.tree.map(jnp.ones_like, PARAMS), state, PARAMS)
        history.append(gx.metrics(state))
    said = texts_of(plot.training(history, title="A run"))
    assert {"learning_rate", "gradient_norm", "update_norm", "A run", "step"} <= set(said)


def test_cells_may_be_missing_and_keys_chosen():
    rows = [{"loss": 1.0}, {"loss": 0.5, "accuracy": 0.9}, {"loss": math.nan}]
    figure = plot.training(rows, ["accuracy"])
    [points] = lines_of(figure.axes[0]).values()
    assert points[:, 0].tolist() == [0, 1, 2] and np.isnan(points[[0, 2], 1]).all()
    assert {"row", "accuracy"} <= set(texts_of(figure))
    chosen = plot.training(HISTORY, "scale")
    assert len(chosen.axes) == 1 and len(chosen.axes[0].collections) == 1


# ------------------------------------------------------------------------------------ what is wrong


class Counted:
    """A schedule with a state."""

    def init(self):
        return jnp.zeros(())

    def update(self, state, **extra_args):
        return state + 1

    def __call__(self, state, **extra_args):
        return state


def of_the_file(text, tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_bytes(text)
    return plot.training(path)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: plot.schedule("linear", 9), TypeError, "needs a schedule, a list or a dict"),
        (lambda: plot.schedule(gx.linear_schedule, 9), TypeError, "needs a schedule"),
        (lambda: plot.schedule(gx.sgd(0.1), 9), TypeError, "needs a schedule"),
        (lambda: plot.schedule({"a": 0.1, "b": None}, 9), TypeError, "got None for 'b'"),
        (lambda: plot.schedule([], 9), ValueError, "needs at least one schedule, got []"),
        (lambda: plot.schedule(Counted(), 9), TypeError, "has a state, which a run decides"),
        (lambda: plot.schedule(0.1, 0), ValueError, "steps must be from 1 to 2147483647, got 0"),
        (lambda: plot.schedule(0.1, 2.5), TypeError, "steps must be an integer, got 2.5"),
        (lambda: plot.schedule(0.1, True), TypeError, "steps must be an integer, got True"),
        (lambda: plot.schedule(lambda n: 1 / n, 9), ValueError, "is inf at step 0"),
        (lambda: plot.schedule(lambda n: jnp.ones(2), 9), TypeError, "must return one number"),
        (
            lambda: plot.schedule(lambda n: jax.lax.complex(1.0, 1.0), 9),
            TypeError,
            "must return a real number",
        ),
        (lambda: plot.schedule(lambda n: "x", 9), TypeError, "failed for the count"),
        (lambda: plot.schedule(lambda n: 1 if n > 2 else 0, 9), TypeError, "failed for the count"),
        (lambda: plot.schedule(0.1, 9, "axes"), TypeError, "ax must be matplotlib axes"),
        (lambda: plot.schedule(0.1, 9, dark="yes"), TypeError, "dark must be True or False"),
        (lambda: plot.paths(gx.sgd, "valley"), TypeError, "needs a transform, a list or a dict"),
        (
            lambda: plot.paths([0.1]),
            TypeError,
            "needs a transform, a list or a dict of them, got 0.1",
        ),
        (lambda: plot.paths({}), ValueError, "needs at least one transform"),
        (lambda: plot.paths(gx.sgd(0.1), "vally"), ValueError, "Did you mean 'valley'?"),
        (
            lambda: plot.paths(gx.sgd(0.1), "qq"),
            ValueError,
            "There are valley, saddle, rosenbrock.",
        ),
        (lambda: plot.paths(gx.sgd(0.1), 3), TypeError, "surface must be the name of one"),
        (lambda: plot.paths(gx.sgd(0.1), lambda v: v), TypeError, "must return one real number"),
        (lambda: plot.paths(gx.sgd(0.1), lambda x, y: x), ValueError, "failed for an array of two"),
        (
            lambda: plot.paths(gx.sgd(0.1), lambda v: jnp.log(v[0]), start=(-1, 0)),
            ValueError,
            "surface is nan at the start (-1.0, 0.0); choose another with start=",
        ),
        (lambda: plot.paths(gx.sgd(0.1), steps=0), ValueError, "steps must be from 1"),
        (lambda: plot.paths(gx.sgd(0.1), start=3), TypeError, "start must be two numbers"),
        (lambda: plot.paths(gx.sgd(0.1), start=(1, 2, 3)), ValueError, "start must be a pair"),
        (lambda: plot.paths(gx.sgd(0.1), x=(2, 1)), ValueError, "x must rise"),
        (
            lambda: plot.paths({"m": gx.scale_by_muon()}),
            ValueError,
            "the optimizer 'm' does not run on an array of two parameters",
        ),
        (lambda: plot.descend(gx.sgd), TypeError, "not a transform; call it"),
        (lambda: plot.Surface("f"), TypeError, "function must be a function"),
        (lambda: plot.Surface(jnp.sum, title=3), TypeError, "title must be"),
        (lambda: plot.state_memory(gx.adam, PARAMS), TypeError, "not a transform; call it"),
        (lambda: plot.state_memory(gx.adam(0.1), {}), ValueError, "params must have arrays"),
        (lambda: plot.training([]), ValueError, "must have a numeric column"),
        (lambda: plot.training({"a": ["x"]}), ValueError, "must have a numeric column"),
        (lambda: plot.training([{"step": 1}]), ValueError, "a numeric column besides 'step'"),
        (lambda: plot.training(3), TypeError, "must be a list of dicts, a dict of lists or"),
        (lambda: plot.training([1.0]), TypeError, "metrics[0] must be a dict, got 1.0"),
        (lambda: plot.training({"a": 1.0}), TypeError, "must be a list of numbers, got 1.0"),
        (lambda: plot.training({"a": [1], "b": [1, 2]}), ValueError, "'a' has 1 numbers, and 'b'"),
        (lambda: plot.training(HISTORY, ["los"]), ValueError, "Did you mean 'loss'?"),
        (lambda: plot.training(HISTORY, ["note"]), TypeError, "'note' is not numeric"),
        (lambda: plot.training(HISTORY, []), ValueError, "keys are empty"),
        (lambda: plot.training("absent.csv"), FileNotFoundError, "absent.csv"),
    ],
)
def test_a_wrong_argument_is_an_error_of_one_line(call, error, words):
    with pytest.raises(error) as info:
        call()
    assert words in str(info.value) and "\n" not in str(info.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "is empty"),
        (b"a,b\n1\n", "line 2: has 1 cells, and the head has 2"),
        (b"a,a\n1,2\n", "has two columns of one name"),
        (b"\xff\xfe\x00", "is not a CSV file"),
    ],
)
def test_a_file_that_is_not_a_table_is_refused(text, words, tmp_path):
    with pytest.raises(ValueError, match="training: ") as info:
        of_the_file(text, tmp_path)
    assert words in str(info.value) and "\n" not in str(info.value)


def test_without_matplotlib_an_error_names_the_extra(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError) as info:
        plot.schedule(0.1, 5)
    assert "plot.schedule needs matplotlib: pip install 'gradxform[plot]'." in str(info.value)


def test_a_blank_page_is_not_a_picture():
    """The drawing is there: pixels other than the paper's."""
    file = io.BytesIO()
    plot.paths(gx.sgd(0.01), steps=5).savefig(file, format="rgba")
    pixels = np.frombuffer(file.getvalue(), np.uint8).reshape(-1, 4)
    assert len(np.unique(pixels, axis=0)) > 100
