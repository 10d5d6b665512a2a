"""The race: who takes part, how runs go on where they stopped, and what its page shows."""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.progress import Progress

import gradxform as gx
from benchmarks.__main__ import Bar, main
from benchmarks.options import Refused
from benchmarks.sections import race as section
from benchmarks.subjects import entrants
from benchmarks.subjects.pairs import PAIRS
from benchmarks.subjects.workloads.names import WORKLOADS, workload
from benchmarks.subjects.workloads.workload import Start, Workload
from benchmarks.tables import race
from benchmarks.timing.racing import Budget, Runs, Try, best_rate
from docs.site import race as page
from gradxform.commands.catalog import registered_parts

pytestmark = pytest.mark.numeric


@pytest.fixture(autouse=True)
def relaxed():
    """The settings of the command line, which also turns off the cache of compiled programs."""
    cache = jax.config.jax_enable_compilation_cache
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
    jax.config.update("jax_enable_compilation_cache", cache)


def bowl(tables=""):
    """A workload of one table, whose rows are pulled to 1."""

    def loss(params, batch):
        return jnp.mean((params["table"][batch] - 1.0) ** 2)

    return Workload(
        about="a bowl",
        start=lambda seed, steps: Start(
            {"table": jnp.full((3, 2), 0.1 * seed)},
            jnp.zeros((steps, 3), jnp.int32) + jnp.arange(3),
        ),
        loss=loss,
        total=lambda params: loss(params, jnp.arange(3)),
        steps=20,
        every=2,
        over=1,
        data=1,
        tables=tables,
        same_examples=True,
    )


def ours(name, make, usual=0.1):
    return entrants.Entrant(name, make, usual, name)


# ------------------------------------------------------------------------------------ who races


def test_every_optimizer_of_the_library_races_or_is_left_out_by_name():
    listed = [e.name for e in registered_parts("optimizers") if ":" not in e.name]
    racing = [name for name in entrants.names() if not name.startswith(race.THEIRS)]
    assert sorted([*racing, *entrants.LEFT_OUT]) == sorted(listed)
    assert not set(racing) & set(entrants.LEFT_OUT)


def test_every_optimizer_takes_a_step():
    made = bowl()
    for name in entrants.names():
        racer = entrants.entrant(name)
        runs = Runs(racer, made, Budget(2, 1, 1, (0,), 0.0))
        losses = jax.eval_shape(runs._losses, jnp.float32(0.1), *runs.start(0))
        assert losses.shape == (2,), name
        assert len(racer.rates) in (0, 8), name


def test_the_control_are_ten_optimizers_that_both_libraries_have():
    assert len(set(entrants.CONTROL)) == 10 and set(entrants.CONTROL) <= set(PAIRS)


def test_an_optimizer_without_a_usual_rate_says_how_to_find_it(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(entrants, "_best_rates", dict)
    assert main(["race", "--quick", "--only", "lion", "--out", str(tmp_path)]) == 2
    said = 'does not have the usual learning rate of lion; run `make docs-data ARGS="lion"`.'
    assert said in capsys.readouterr().err


# ------------------------------------------------------------------------------------ workloads


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_the_same_each_time_and_has_a_target(name):
    made = workload(name)
    (params, batches), (again, same), (other, _) = (made.start(seed, 3) for seed in (1, 1, 2))
    for x, y in zip(
        jax.tree.leaves((params, batches)), jax.tree.leaves((again, same)), strict=True
    ):
        np.testing.assert_array_equal(x, y)
    assert all(len(x) == 3 for x in jax.tree.leaves(batches))
    assert any((x != y).any() for x, y in zip(*map(jax.tree.leaves, (params, other)), strict=True))
    target = json.loads(race.TARGETS.read_text())["workloads"][name]
    assert target["budget"] == [made.steps, made.every, made.over]
    assert 0 < target["target"] < float(made.total(params))
    assert made.steps % made.every == 0


def test_the_convolution_as_a_product_is_that_of_xla():
    from benchmarks.subjects.workloads.digits import _convolved

    random = np.random.default_rng(0)
    x, kernel = (
        jnp.asarray(random.normal(size=s), jnp.float32) for s in ((2, 4, 6, 3), (3, 3, 3, 5))
    )
    wanted = jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    np.testing.assert_allclose(_convolved(x, kernel), wanted, atol=1e-5)


def test_the_excess_of_the_regression_is_the_loss_above_its_least():
    made = workload("regression")
    (params, batches), _ = made.start(0, 1), None
    least = made.loss(jax.tree.map(jnp.zeros_like, params), batches[0]) - made.total(
        jax.tree.map(jnp.zeros_like, params)
    )
    np.testing.assert_allclose(made.loss(params, batches[0]) - made.total(params), least, rtol=1e-4)


# ----------------------------------------------------------------------------------------- runs


def test_rates_run_as_one_program_and_find_what_single_runs_find():
    budget = Budget(20, 2, 1, (0, 1), 1e-3)
    runs = Runs(ours("sgd", gx.sgd), bowl(), budget)
    tries, as_one = runs.tries()
    assert as_one and [t.seed for t in tries] == [0, 1]
    start = runs.start(1)
    for rate, steps in zip(tries[1].rates, tries[1].steps, strict=True):
        losses = np.asarray(jax.jit(runs._until_decided)(jnp.float32(rate), *start))
        reached = losses <= budget.target
        assert steps == (2 * (int(np.argmax(reached)) + 1) if reached.any() else None)
    assert tries[0].steps[0] is None  # the lowest rate hardly moves
    assert best_rate(tries) == 3.16  # a step at the rate 3 ends in the minimum


@pytest.mark.parametrize("over", [1, 3])
def test_a_run_alone_stops_where_the_mean_of_measurements_reaches_the_target(over):
    budget = Budget(20, 2, over, (1,), 1e-3)
    runs = Runs(ours("sgd", gx.sgd), bowl(), budget)
    start = runs.start(1)
    whole = np.asarray(jax.jit(runs._losses)(jnp.float32(0.8), *start))
    alone = np.asarray(jax.jit(runs._until_decided)(jnp.float32(0.8), *start))
    (after,) = runs._judged(1, [0.8], whole[None]).steps
    means = [np.mean(whole[i : i + over]) for i in range(11 - over)]
    assert after == 2 * (over + next(i for i, x in enumerate(means) if x <= 1e-3)) < 20
    assert runs._judged(1, [0.8], alone[None]).steps == [after]
    np.testing.assert_allclose(alone[: after // 2], whole[: after // 2], rtol=1e-5)
    assert not np.isfinite(alone[after // 2 :]).any()


def test_rates_that_would_wait_for_each_other_run_one_by_one():
    def with_a_condition(rate):
        def update(updates, state, params=None):
            big = rate * jnp.sum(jax.tree.leaves(updates)[0]) > 1.0
            scaled = jax.lax.cond(big, lambda u: u, lambda u: jax.tree.map(jnp.sign, u), updates)
            return jax.tree.map(lambda x: -rate * x, scaled), state

        return gx.GradientTransformation(lambda params: gx.EmptyState(), update)

    budget = Budget(4, 2, 1, (0,), 0.0)
    assert not Runs(ours("condition", with_a_condition), bowl(), budget).tries()[1]
    assert not Runs(ours("lbfgs", gx.lbfgs), bowl(), budget).tries()[1]
    # A condition on the count is the same for all rates.
    every_other = lambda rate: gx.MultiSteps(gx.sgd(rate), every_k_schedule=2)  # noqa: E731
    assert Runs(ours("count", every_other), bowl(), budget).tries()[1]


def test_a_slow_first_seed_leaves_the_best_rate_to_the_others(monkeypatch):
    monkeypatch.setattr("benchmarks.timing.racing.LIMIT", 0.0)
    tries, _ = Runs(ours("sgd", gx.sgd), bowl(), Budget(20, 2, 1, (0, 1, 2), 1e-3)).tries()
    assert [len(t.rates) for t in tries] == [8, 1, 1]
    assert tries[1].rates == tries[2].rates == [best_rate(tries[:1])]


def test_a_table_gets_row_sparse_gradients_where_the_rule_takes_them():
    budget = Budget(2, 1, 1, (0,), 0.0)
    assert Runs(ours("adam", gx.adam), bowl("table"), budget).sparse
    assert not Runs(ours("adam", gx.adam), bowl(), budget).sparse
    refuses = entrants.entrant("muon")
    runs = Runs(refuses, bowl("table"), budget)
    assert not runs.sparse and len(runs.tries()[0][0].lowest) == 8


def test_seconds_are_measured_in_a_run_of_their_own():
    runs = Runs(ours("sgd", gx.sgd), bowl(), Budget(20, 2, 1, (0,), 1e-3))
    seconds, compiling = runs.seconds(0.1, 7)
    assert 0 < seconds < compiling


def test_the_best_rate_reaches_most_targets_in_the_fewest_steps():
    rates = [1.0, 2.0, 3.0]
    tries = [
        Try(0, rates, [5, 9, None], [0.1, 0.1, 9.0]),
        Try(1, rates, [None, 7, None], [0.2, 0.1, None]),
    ]
    assert best_rate(tries) == 2.0
    assert best_rate([Try(0, rates, [5, 9, None], [0.1, 0.1, 9.0])]) == 1.0
    assert best_rate([Try(0, rates, [None] * 3, [0.3, None, 0.2])]) == 3.0
    assert best_rate([Try(0, [], [4], [0.1])]) is None
    # Another rate may come nearer, where not all have tried it.
    assert best_rate([Try(0, rates, [None] * 3, [0.3, 0.2, 0.1]), Try(1, [2.0], [None], [9])]) == 2


# ------------------------------------------------------------------------------ the command line


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_short_race_on_a_workload(name, tmp_path, capsys):
    argv = ["race", "--quick", "--only", "adamw", "--workloads", name, "--out", str(tmp_path)]
    assert main(argv) == 0
    (file,) = race.read(tmp_path / "race")
    row = file["workloads"][name]
    assert file["name"] == "adamw" and row["of"]["steps"] == 3 and row["seconds"] is None
    assert [len(t["lowest"]) for t in row["tries"]] == [8]
    assert row["gradients"] == ("row-sparse" if name == "recommendation" else "")
    params = jax.tree.leaves(workload(name).start(0, 1).params)
    assert row["state"] >= 8 * sum(x.size for x in params)  # two moments
    assert (tmp_path / "race.png").read_bytes()[:4] == b"\x89PNG"
    assert "adamw" in capsys.readouterr().out


def test_seconds_that_a_later_call_measures_are_written(tmp_path):
    argv = ["race", "--quick", "--only", "sgd", "--out", str(tmp_path), "--workloads", "regression"]
    assert main([*argv, "--untimed"]) == 0
    path = tmp_path / "race" / "sgd.json"
    first = json.loads(path.read_text())
    assert main(argv) == 0  # nothing else is new in the file
    rows = {"regression": first["workloads"]["regression"] | {"seconds": None}}
    assert json.loads(path.read_text()) == first | {"workloads": rows}


def test_an_interrupted_race_goes_on_where_it_stopped(tmp_path, monkeypatch, capsys):
    argv = ["race", "--quick", "--only", "sgd", "--out", str(tmp_path), "--workloads"]
    assert main([*argv, "regression", "--untimed"]) == 0
    path = tmp_path / "race" / "sgd.json"
    first = json.loads(path.read_text())["workloads"]["regression"]
    assert "seconds" not in first
    whole, done = Runs.tries, []

    def interrupted(self):
        if done:
            raise KeyboardInterrupt
        done.append(self)
        return whole(self)

    monkeypatch.setattr(Runs, "tries", interrupted)
    capsys.readouterr()
    assert main([*argv, "regression,factorization,variational"]) == 130
    assert f"{path.parent} holds the cases that were complete" in capsys.readouterr().err
    found = json.loads(path.read_text())["workloads"]
    # What was there is not run again, and has its seconds now.
    assert list(found) == ["regression", "factorization"] and found["regression"] == first | {
        "seconds": None
    }
    # Another version of the optimizer begins anew.
    path.write_text(json.dumps(json.loads(path.read_text()) | {"config": "sgd of old"}))
    monkeypatch.setattr(Runs, "tries", whole)
    assert main([*argv, "variational"]) == 0
    assert list(json.loads(path.read_text())["workloads"]) == ["variational"]
    assert not list((tmp_path / "race").glob("*.part"))


def test_an_optimizer_that_fails_is_said_and_does_not_stop_the_others(
    tmp_path, monkeypatch, capsys
):
    def fails(self):
        raise FloatingPointError("of this test")

    monkeypatch.setattr(Runs, "tries", fails)
    argv = ["race", "--quick", "--only", "sgd", "--workloads", "regression", "--out", str(tmp_path)]
    assert main(argv) == 0
    (file,) = race.read(tmp_path / "race")
    assert file["workloads"]["regression"]["error"] == "FloatingPointError: of this test"
    assert "failed" in capsys.readouterr().out


def test_targets_of_other_data_are_refused(monkeypatch):
    _, options = section_options()
    found = json.loads(race.TARGETS.read_text())["workloads"]
    section._budget("regression", options, found)
    for field in ("data", "budget"):
        wrong = found | {"regression": found["regression"] | {field: 1}}
        with pytest.raises(Refused, match=rf"another {field} \(1\).*--targets --workloads regr"):
            section._budget("regression", options, wrong)


def section_options():
    from benchmarks.__main__ import parse

    return parse(["race", "--quick"])


WRONG = {
    "race --only step": "'step' is none of",
    "core --only adamw": "'adamw' is none of",
    "race --workloads x": "'x' is none of",
    "race --only=": "argument --only: '' is none of",
    "race --seed -1": "argument --seed: '-1' is not an integer from 0",
    "race --seed 7": "the files that the site shows are of seed 0: with --seed, give --out DIR",
    "race --targets --only lion": "--targets measures AdamW alone, in full: leave out --only",
    "race --targets --quick": "leave out --quick",
    "race --targets --untimed": "leave out --untimed",
}


@pytest.mark.parametrize("argv, said", WRONG.items())
def test_wrong_options_are_refused(argv, said, capsys):
    with pytest.raises(SystemExit):
        main(argv.split())
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and said in error


def test_targets_go_where_the_command_line_says(tmp_path, monkeypatch):
    tries = [Try(seed, [1.0], [None], [0.5]) for seed in range(3)]
    monkeypatch.setattr(Runs, "tries", lambda self: (tries, True))
    before = race.TARGETS.read_bytes()
    assert main(["race", "--targets", "--workloads", "regression", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / race.TARGETS.name).read_text())["workloads"]
    assert list(found) == list(WORKLOADS) and found["regression"]["target"] == 0.505
    assert race.TARGETS.read_bytes() == before


def test_two_processes_may_write_the_results_at_once(tmp_path, monkeypatch):
    path = tmp_path / "race.json"
    one, other = (Bar("race", Progress(), path) for _ in range(2))
    rename = Path.replace

    def interleaved(part, to):
        monkeypatch.undo()
        other.save({"of": "the other"})
        return rename(part, to)

    monkeypatch.setattr(Path, "replace", interleaved)
    one.save({"of": "the one"})
    assert json.loads(path.read_text()) == {"of": "the one"}
    assert list(tmp_path.iterdir()) == [path]


def test_targets_are_what_one_rate_reaches_with_all_seeds():
    tries = [
        Try(0, [1.0, 2.0], [None] * 2, [0.1, 0.3]),
        Try(1, [1.0, 2.0], [None] * 2, [None, 0.2]),
    ]
    assert section._target(tries) == {"target": 0.303, "rate": 2.0}


# ------------------------------------------------------------------------------------- the page


def results(name, on, **more):
    """A file: for each workload the steps of three seeds at rates 0.1 and 1.0, or a reason."""
    rows = {}
    for each, steps in on.items():
        rows[each] = {"of": {"rates": [0.1, 1.0]}} | more
        if isinstance(steps, str):
            rows[each]["left out"] = steps
            continue
        rows[each] |= {"rate": 1.0, "state": 800, "gradients": ""}
        rows[each]["tries"] = [
            {"seed": i, "rates": [0.1, 1.0], "steps": [None, n], "lowest": [1.0, 0.5]}
            for i, n in enumerate(steps)
        ]
    return {"name": name, "config": name, "machine": "", "workloads": rows}


FILES = [
    results("adamw", {"digits": [100, 120, 110], "regression": [40, 40, 40]}),
    results("lion", {"digits": [50, 55, 60], "regression": [None, None, 80]}),
    results("lbfgs_steps", {"digits": "compares losses", "regression": [10, 10, 10]}),
    results("optax.adamw", {"digits": [100, 130, 112], "regression": [40, 40, 40]}),
]


def test_lines_are_factors_of_the_best():
    lines = {line.name: line for line in race.lines(FILES)}
    assert "optax.adamw" not in lines
    assert lines["adamw"].factors == {"digits": 2.0, "regression": 4.0}
    assert lines["lion"].factors == {"digits": 1.0, "regression": math.inf}
    assert lines["lbfgs_steps"].factors == {"digits": math.inf, "regression": 1.0}
    assert lines["adamw"].score == pytest.approx((2 / 3 + 0) / 2) and lines["lion"].score == 0.5
    cell = lines["lion"].cells["regression"]
    assert (
        cell.steps is None
        and cell.seeds == pytest.approx(1 / 3)
        and cell.rates == pytest.approx(1 / 3)
    )
    assert lines["adamw"].slower is None  # seconds were not measured


def test_the_page_has_the_table_of_given_files():
    rows = page.summary(FILES, lambda name: f"[{name}]").split("\n")
    assert rows[0] == page.BEGIN and rows[-1] == page.END
    assert [row.split(" | ")[0] for row in rows[4:-2]] == [
        "| [lbfgs_steps]",
        "| [lion]",
        "| [adamw]",
    ]
    assert rows[6] == "| [adamw] | 0.33 | – | 2 | 33% | 1.0 | 1,600 |"
    tabs = page.workloads(FILES, str)
    assert "    | lion | 55 | – | 100% | 1.0 | 1 | 800 |  |" in tabs.split("\n")
    assert "    | lbfgs_steps | – | – | 0% | – | – | – | compares losses |" in tabs.split("\n")
    assert tabs.index("| lion | 55") < tabs.index("| adamw | 110")
    assert "| `optax.adamw` | 110 / 112 | – / – |" in page.control(FILES)


def test_the_page_leaves_out_what_is_of_another_version():
    targets = json.loads(race.TARGETS.read_text())["workloads"]
    now = results("lion", {name: [9] * 3 for name in WORKLOADS})
    now["config"] = entrants.entrant("lion").config
    for name, row in now["workloads"].items():
        row["of"]["target"] = targets[name]["target"]
    earlier = {"regression": now["workloads"]["regression"] | {"of": {"target": 0.5}}}
    old = results("adamw", {name: [9] * 3 for name in WORKLOADS})
    theirs, gone = results("optax.adamw", {}), results("optimizer_of_old", {})
    kept = page.current([old, theirs, now, gone])
    assert kept == [theirs, now]
    assert page.current([now | {"workloads": earlier}]) == [now | {"workloads": {}}]
    without = page.missing(kept, str).removesuffix(".").split(": ")[1].split(", ")
    assert "adamw" in without and "lion" not in without and "optax.adamw" not in without
    every = [{"name": name, "workloads": dict.fromkeys(WORKLOADS)} for name in entrants.names()]
    assert page.missing(every, str) == ""


def test_a_profile_is_drawn_with_seconds_once_all_are_measured():
    assert len(race.profile(FILES).axes) == 1 and len(race.profile([]).axes) == 1
    timed = [results("adamw", {"digits": [100] * 3}, seconds=2.0)]
    timed.append(results("lion", {"digits": [50] * 3}, seconds=4.0))
    first, second = race.profile(timed).axes
    assert (first.get_xlabel(), second.get_xlabel()) == (
        "steps, of the best",
        "seconds, of the best",
    )
    labels = [text.get_text() for text in second.get_legend().get_texts()]
    assert labels == ["adamw", "lion"]  # the faster first
    assert race.lines(timed)[0].name == "lion"


def test_the_page_of_the_site_has_no_marks_left():
    text = page.completed((race.DATA.parents[1] / "race.md").read_text(), str)
    assert "{{" not in text and "## The targets\n\n| workload" in text
    for name in entrants.LEFT_OUT:
        assert f"- {name} " in text
