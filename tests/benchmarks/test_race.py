"""The race: who takes part, how runs go on where they stopped, and what its page shows."""

import json
import math
import re
import zlib
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
from benchmarks.subjects.workloads import modules
from benchmarks.subjects.workloads.names import WORKLOADS, workload
from benchmarks.subjects.workloads.workload import Start, Workload
from benchmarks.tables import race
from benchmarks.timing.racing import Budget, Runs, Try, best_rate
from docs.site import choices, dots, race as page
from gradxform.commands.catalog import registered_parts

pytestmark = pytest.mark.numeric

CRC = 1530761301  # of the text of two workloads


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
        runs = Runs(racer, made, Budget(2, 1, 1, (9,), (0,), 0.0))
        params, batches = runs.start(0)
        carry = runs._begin(jnp.float32(0.1), params)
        after = jax.eval_shape(runs._step, jnp.float32(0.1), carry, batches[0])
        assert jax.tree.structure(after) == jax.tree.structure(carry), name
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
    assert target["data"] == made.data


def test_the_text_of_workloads_is_a_file_that_does_not_change():
    texts = modules.modules()
    assert len(texts) == 256 and max(map(len, texts)) == 2000
    assert zlib.crc32("\f".join(texts).encode()) == CRC
    for name in ("characters", "recommendation"):
        assert "stdlib" not in Path(WORKLOADS[name].__code__.co_filename).read_text()


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


def test_a_rate_is_chosen_on_one_seed_and_others_are_scored_at_it():
    budget = Budget(20, 2, 1, (7,), (0, 1), 1e-3)
    runs = Runs(ours("sgd", gx.sgd), bowl(), budget)
    (tuned,) = runs.tuned()
    assert tuned.seed == 7 and tuned.rates == list(runs.entrant.rates)
    assert tuned.steps[0] is None and tuned.lowest[0] > 1e-3  # the lowest rate hardly moves
    assert best_rate([tuned]) == 3.16  # a step at the rate 3 ends in the minimum
    scored = runs.scored(3.16)
    assert [t.seed for t in scored] == [0, 1] and all(t.rates == [3.16] for t in scored)
    without = Runs(ours("none", lambda rate: gx.sgd(3.16), None), bowl(), budget)
    assert without.tuned() == [] and best_rate([]) is None
    assert [t.steps for t in without.scored(None)] == [t.steps for t in scored]


def test_a_run_takes_the_steps_of_a_training_loop():
    runs = Runs(ours("adam", gx.adam), bowl(), Budget(6, 2, 1, (), (1,), 0.0))
    start = runs.start(1)
    params, state, losses = start.params, gx.adam(0.3).init(start.params), []
    for i in range(6):
        grads = jax.grad(runs.workload.loss)(params, start.batches[i])
        updates, state = gx.adam(0.3).update(grads, state, params)
        params = gx.apply_updates(params, updates)
        losses.append(float(runs.workload.total(params)))
    np.testing.assert_allclose(runs.losses(0.3, start), losses[1::2], rtol=1e-4)


@pytest.mark.parametrize("over", [1, 3])
def test_a_run_stops_where_the_mean_of_measurements_reaches_the_target(over):
    budget = Budget(20, 2, over, (), (1,), 0.0)
    whole = Runs(ours("sgd", gx.sgd), bowl(), budget).losses(0.8, _first_of_bowl(budget))
    assert len(whole) == 10
    runs = Runs(ours("sgd", gx.sgd), bowl(), budget._replace(target=1e-3))
    alone = runs.losses(0.8, _first_of_bowl(budget))
    means = [np.mean(whole[i : i + over]) for i in range(11 - over)]
    after = over + next(i for i, x in enumerate(means) if x <= 1e-3)
    assert len(alone) == after < 10
    np.testing.assert_allclose(alone, whole[:after], rtol=1e-5)
    assert runs._steps_of(alone) == 2 * after and runs._steps_of(alone[:-1]) is None


def _first_of_bowl(budget):
    return Runs(ours("sgd", gx.sgd), bowl(), budget).start(1)


def test_a_run_stops_where_a_loss_is_not_a_number():
    nan = gx.stateless(lambda updates, params: jax.tree.map(lambda u: u * jnp.nan, updates))
    breaks = lambda rate: gx.chain(gx.sgd(rate), nan)  # noqa: E731
    budget = Budget(20, 2, 1, (), (1,), 1e-3)
    (tried,) = Runs(ours("nan", breaks), bowl(), budget).scored(1.0)
    assert tried.steps == [None] and tried.lowest == [None]


def test_a_loss_is_given_to_those_that_ask_for_it():
    budget = Budget(8, 2, 1, (), (1,), 1e-3)
    (tried,) = Runs(ours("lbfgs", gx.lbfgs), bowl(), budget).scored(1.0)
    assert tried.steps[0] is not None


def test_a_table_gets_row_sparse_gradients_where_the_rule_takes_them():
    budget = Budget(2, 1, 1, (9,), (0,), 0.0)
    assert Runs(ours("adam", gx.adam), bowl("table"), budget).sparse
    assert not Runs(ours("adam", gx.adam), bowl(), budget).sparse
    refuses = entrants.entrant("muon")
    runs = Runs(refuses, bowl("table"), budget)
    assert not runs.sparse and len(runs.tuned()[0].lowest) == 8


def test_seconds_are_measured_in_a_run_of_their_own():
    runs = Runs(ours("sgd", gx.sgd), bowl(), Budget(20, 2, 1, (), (0,), 1e-3))
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


# ------------------------------------------------------------------------------ the command line


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_short_race_on_a_workload(name, tmp_path, capsys):
    argv = ["race", "--quick", "--only", "adamw", "--workloads", name, "--out", str(tmp_path)]
    assert main(argv) == 0
    (file,) = race.read(tmp_path / "race")
    row = file["workloads"][name]
    assert file["name"] == "adamw" and row["of"]["steps"] == 3 and row["seconds"] is None
    assert [len(t["lowest"]) for t in row["tuning"]] == [8]
    assert [t["rates"] for t in row["scored"]] == [[row["rate"]]]
    assert row["of"]["seeds"] == [0] and row["of"]["tuning"] == [5]
    assert row["gradients"] == ("row-sparse" if name == "recommendation" else "")
    params = jax.tree.leaves(workload(name).start(0, 1).params)
    assert row["state"] >= 8 * sum(x.size for x in params)  # two moments
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
    whole, done = Runs.scored, []

    def interrupted(self, rate):
        if done:
            raise KeyboardInterrupt
        done.append(self)
        return whole(self, rate)

    monkeypatch.setattr(Runs, "scored", interrupted)
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
    monkeypatch.setattr(Runs, "scored", whole)
    assert main([*argv, "variational"]) == 0
    assert list(json.loads(path.read_text())["workloads"]) == ["variational"]
    assert not list((tmp_path / "race").glob("*.part"))


def test_an_optimizer_that_fails_is_said_and_does_not_stop_the_others(
    tmp_path, monkeypatch, capsys
):
    def fails(self):
        raise FloatingPointError("of this test")

    monkeypatch.setattr(Runs, "tuned", fails)
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
    seen = []

    def tuned(self):
        seen.append(self.budget)
        lows = [0.5] * 8 + [0.6, 0.9]
        return [
            Try(seed, [0.1, 1.0], [None, None], [0.7, low])
            for seed, low in zip(self.budget.tuning, lows, strict=True)
        ]

    def scored(self, rate):
        seen.append((self.budget, self.start(1000).params["weights"]))
        return [
            Try(seed, [rate], [None if i < 2 else 9], [0.1]) for i, seed in enumerate(range(10))
        ]

    monkeypatch.setattr(Runs, "tuned", tuned)
    monkeypatch.setattr(Runs, "scored", scored)
    before = race.TARGETS.read_bytes()
    assert main(["race", "--targets", "--workloads", "regression", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / race.TARGETS.name).read_text())["workloads"]
    assert list(found) == list(WORKLOADS)
    new = found["regression"]
    # All seeds but one reach it at the rate 1, in three quarters of the steps.
    assert (new["target"], new["rate"], new["reached"], new["reached when moved"]) == (0.6, 1, 9, 8)
    made = workload("regression")
    assert seen[0].steps == 0.75 * made.steps and seen[1][0].steps == made.steps
    assert seen[1][0].target == 0.6 and set(seen[0].tuning) == set(new["seeds"])
    moved, first = seen[1][1], made.start(1000, 1).params["weights"]
    assert 0 < float(jnp.max(jnp.abs(moved - first))) < 1e-6
    assert race.TARGETS.read_bytes() == before


def test_the_seeds_of_targets_of_tuning_and_of_scores_have_nothing_in_common():
    sets = [set(x) for x in (section.SCORED, section.TUNED, section.OF_TARGETS)]
    assert len(sets[0]) == 5 and sum(map(len, sets)) == len(set.union(*sets))
    for name, row in json.loads(race.TARGETS.read_text())["workloads"].items():
        assert not set(row["seeds"]) & (sets[0] | sets[1]), name


def test_targets_hold_on_other_seeds_and_in_other_roundings():
    for name, row in json.loads(race.TARGETS.read_text())["workloads"].items():
        assert row["reached"] >= 9 and row["reached when moved"] >= 9, name
        made = workload(name)
        assert row["target"] >= 0.99 * section.PRECISION * float(
            made.total(made.start(row["seeds"][0], 1).params)
        ), name


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


def test_a_target_is_what_one_rate_reaches_with_all_seeds_but_one():
    lows = [[0.1, 0.3], [None, 0.2], [None, 0.4]]
    tries = [Try(i, [1.0, 2.0], [None] * 2, low) for i, low in enumerate(lows)]
    assert section._reached(tries) == (0.3, 2.0)
    assert section._rounded_up(0.12301) == 0.124 and section._rounded_up(2.5e-6) == 2.5e-6


# ------------------------------------------------------------------------------------- the page


def results(name, on, **more):
    """A file: for each workload the steps of three seeds, chosen among two rates, or a reason."""
    rows = {}
    for each, steps in on.items():
        rows[each] = {"of": {"rates": [0.1, 1.0]}} | more
        if isinstance(steps, str):
            rows[each]["left out"] = steps
            continue
        rows[each] |= {"rate": 1.0, "state": 800, "gradients": ""}
        rows[each]["tuning"] = [
            {"seed": 9, "rates": [0.1, 1.0], "steps": [None, steps[0]], "lowest": [1.0, 0.5]}
        ]
        rows[each]["scored"] = [
            {"seed": i, "rates": [1.0], "steps": [n], "lowest": [0.5]} for i, n in enumerate(steps)
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
    assert cell.steps is None and cell.seeds == pytest.approx(1 / 3)
    assert cell.rates == 0 and lines["lion"].cells["digits"].rates == 1
    assert lines["adamw"].slower is None  # seconds were not measured


def spread(name, on, seed):
    """A file of steps that the seeds decide as much as the optimizer."""
    random = np.random.default_rng(seed)
    return results(name, {w: [int(x) for x in random.integers(*ends, 5)] for w, ends in on.items()})


def test_scores_have_intervals_and_places_are_shared_where_seeds_do_not_tell():
    wide = {w: (60, 140) for w in ("digits", "regression")}
    alike = [spread(name, wide, i) for i, name in enumerate(("adam", "adamw", "lion"))]
    slow = results("sgd", {w: [300, 310, 320, 305, 315] for w in wide})
    files = [*alike, slow]
    lines = {line.name: line for line in race.lines(files)}
    for line in lines.values():
        low, high = line.interval
        assert low <= line.score <= high, line
    assert {lines[n].place for n in ("adam", "adamw", "lion")} == {1} and lines["sgd"].place == 4
    assert race.lines(files) == race.lines(files)  # the draws are the same each time
    one = [results("adamw", {"digits": [100] * 5}), results("lion", {"digits": [90] * 5})]
    assert [line.interval for line in race.lines(one)] == [
        (1.0, 1.0),
        pytest.approx((0.963, 0.963), abs=1e-3),
    ]
    assert [line.place for line in race.lines(one)] == [1, 2]
    # Nobody reaches a target in some draws.
    rare = [results("adamw", {"digits": [None, None, 50, 60, None]})]
    (line,) = race.lines(rare)
    assert line.score == 0.0 and line.interval[0] == 0.0 < line.interval[1]


def test_the_seeds_say_how_many_digits_a_number_has():
    assert race.digits_of(0.5, 0.58) == 2 and race.digits_of(0.4, 0.6) == 1


def test_a_share_of_steps_has_an_interval():
    files = {f["name"]: {n: race.cell(r) for n, r in f["workloads"].items()} for f in FILES}
    share, (low, high) = race.share(files["lion"]["digits"], files["adamw"]["digits"])
    assert share == 0.5 and low <= 0.5 <= high and high - low < 0.2
    assert race.share(files["lion"]["regression"], files["adamw"]["regression"]) is None


def test_the_page_has_the_table_of_given_files():
    rows = page.summary(FILES, lambda name: f"[{name}]").split("\n")
    assert rows[0] == page.BEGIN and rows[-1] == page.END
    assert [row.split(" | ")[0] for row in rows[4:-2]] == [
        "| [lbfgs_steps]",
        "| [lion]",
        "| [adamw]",
    ]
    assert "seconds" not in rows[2]
    assert rows[6] == "| [adamw] | 3 | 0.33 | 0.30 to 0.36 | 2 | 33% | 1.0 | 1,600 |"
    tabs = page.workloads(FILES, str)
    assert "    | lion | 55 | 50, 55, 60 | 1 | 1 | 800 |  |" in tabs.split("\n")
    assert "    | lion | – | 80, –, – | 0 | 1 | 800 |  |" in tabs.split("\n")
    assert "    | lbfgs_steps | – | – | – | – | – | compares losses |" in tabs.split("\n")
    assert tabs.index("| lion | 55") < tabs.index("| adamw | 110")
    assert "| `optax.adamw` | 110 / 112 | – / – |" in page.control(FILES)


def test_the_page_leaves_out_what_is_of_another_version():
    targets = json.loads(race.TARGETS.read_text())["workloads"]
    now = results("lion", {name: [9] * 3 for name in WORKLOADS})
    now["config"] = entrants.entrant("lion").config
    for name, row in now["workloads"].items():
        row["of"] |= {k: targets[name][k] for k in ("target", "data")}
        row["of"] |= dict(zip(("steps", "every", "over"), targets[name]["budget"], strict=True))
    regression = now["workloads"]["regression"]
    old = results("adamw", {name: [9] * 3 for name in WORKLOADS})
    theirs, gone = results("optax.adamw", {}), results("optimizer_of_old", {})
    kept = page.current([old, theirs, now, gone])
    assert kept == [theirs, now]
    for field in ("target", "data", "steps"):
        other = {"regression": regression | {"of": regression["of"] | {field: 7}}}
        assert page.current([now | {"workloads": other}]) == [now | {"workloads": {}}]
    without = page.missing(kept, str).removesuffix(".").split(": ")[1].split(", ")
    assert "adamw" in without and "lion" not in without and "optax.adamw" not in without
    every = [{"name": name, "workloads": dict.fromkeys(WORKLOADS)} for name in entrants.names()]
    assert page.missing(every, str) == ""


def test_a_row_of_the_picture_is_shares_of_adamw():
    rows = dots.rows(race.lines(FILES), "steps")
    assert [row.name for row in rows] == ["adamw", "lbfgs_steps", "lion"]
    adamw, lbfgs, lion = rows
    assert adamw.shares == {"digits": 1.0, "regression": 1.0} and adamw.median == 1.0
    assert lbfgs.shares == {"digits": None, "regression": 0.25}  # it did not run
    assert lion.shares == {"digits": 0.5, "regression": math.inf} and lion.missed == 1
    assert lion.seeds == {"digits": (50 / 110, 60 / 110), "regression": (2.0, math.inf)}
    assert lion.median == math.inf
    # Without a share of AdamW's a workload is not there.
    only = [results("adamw", {"digits": [100] * 3, "regression": [None] * 3}), FILES[1]]
    assert dots.rows(race.lines(only), "steps")[0].shares == {"digits": 0.55}
    assert dots.rows([], "steps") == [] and page.picture([], str) == page.NOTHING


def test_the_picture_has_an_optimizer_a_row_and_a_workload_a_color():
    files = [results("adamw", {"digits": [100] * 3, "regression": [10] * 3})]
    files.append(results("lion", {"digits": [50] * 3, "regression": [None] * 3}))
    files += [results(f"a{i}", {"digits": [400] * 3}) for i in range(dots.FIRST)]
    made = page.picture(files, lambda name: f"[{name}]" if name == "lion" else name)
    assert sorted(re.findall("<code>(.*?)</code>", made)) == sorted(f["name"] for f in files)
    assert '<a href="../optimizers/lion/"><code>lion</code></a>' in made
    assert "lion, steps as a share of AdamW&#x27;s: digits 0.50, regression missed<" in made
    colors = [i for i, name in enumerate(WORKLOADS) if name in ("digits", "regression")]
    for i in colors:
        assert made.count(f".w{i}{{color:") == 2  # on light and on dark
        assert f'<circle class="w{i}" ' in made
    assert f'<circle class="w{colors[1]} missed"' in made
    # The well known are never behind the fold.
    assert "<summary>The other 1</summary>" in made
    assert made.index("<code>lion<") < made.index("<details>") < made.index("<code>a9<")


def test_the_picture_has_seconds_once_all_are_measured():
    timed = [results("adamw", {"digits": [100] * 3}, seconds=2.0)]
    assert '=== "seconds"' not in page.picture(FILES, str)
    timed.append(results("lion", {"digits": [50] * 3}, seconds=4.0))
    steps, seconds = page.picture(timed, str).split('=== "seconds"')
    assert "digits 0.50" in steps and "digits 2.00" in seconds
    assert steps.index("<code>lion") < steps.index("<code>adamw")
    assert seconds.index("<code>adamw") < seconds.index("<code>lion")  # the faster first


def everywhere(name, steps, state=800, tuned=True):
    """A file of an optimizer on all workloads, with the steps of each in order."""
    file = results(name, dict(zip(WORKLOADS, steps, strict=True)))
    for row in file["workloads"].values():
        row["state"] = state
        row["tuning"] = row["tuning"] if tuned else []
    return file


def test_the_guide_names_what_the_race_shows():
    slow, never = [[90, 91, 92]] * 6, [[None] * 3] * 6
    files = [
        everywhere("adamw", [[100, 101, 102]] * 6),
        everywhere("lion", [[60, 61, 62]] * 3 + [[130, 131, 132]] * 3),
        everywhere("came", slow, state=100),
        everywhere("sm3", never, state=100),
        everywhere("soap", [[40, 41, 42]] * 6, state=8000),
        everywhere("dog", never, tuned=False),
        everywhere("lbfgs", [[None] * 3] * 3 + [[5, 5, 5], [6, 6, 6], [None] * 3], state=8000),
    ]
    lines = race.lines(files)
    found = choices.Race(lines, next(line for line in lines if line.name == "adamw"))
    names = {why: [line.name for line in some] for why, some in choices.picked(found).items()}
    assert names["nothing special"] == ["lion", "came", "adamw"]
    assert names["steps are dear, and you can measure"] == ["soap"]
    assert names["memory is short"] == ["came"]
    assert names["few parameters, no noise, high precision"][0] == "lbfgs"
    assert names["embedding tables dominate"][0] == "soap"
    tables = {
        reason: choices.choices(reason, some, found, lambda name: f"[{name}]")
        for reason, some in choices.picked(found).items()
    }
    table = tables["nothing special"]
    assert table.startswith("| optimizer | targets, of 6 | steps | surely | state |")
    assert "\n| [lion] | 6 | 0.6 to 1.3 | fewer on three, more on three | 1.0 |" in table
    assert "\n| [came] | 6 | 0.9 | fewer on six | 0.1 |" in table
    assert "\n| [adamw] | 6 | 1 |  | 1 |" in table and table.count("\n") == 4
    table = tables["few parameters, no noise, high precision"]
    assert "| [lbfgs] | 2 | 0.05 to 0.06 | fewer on two | 10.0 |" in table
    assert "targets, of 1 |" in tables["embedding tables dominate"]
    said = choices.others(found, str)
    assert "fewer than four targets, have:" in said and said.endswith("| none | sm3 |")
    assert "the targets reached are: dog (none)." in said and "soap (10 times the state)" in said


def test_the_guide_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(race, "read", lambda: [])
    marks = "{{ measured }} {{ rates }} {{ choices: memory is short }} {{ others }}"
    assert choices.completed(marks, str) == " ".join([page.NOTHING] * 4)
    assert choices._unmeasured([{"name": "adamw", "workloads": {}}]).startswith(
        f"{len(entrants.names()) - 10} of {len(entrants.names()) - 10} optimizers have not run"
    )
    every = [{"name": name, "workloads": dict.fromkeys(WORKLOADS)} for name in entrants.names()]
    assert choices._unmeasured(every) == ""


def test_the_pages_of_the_race_keep_no_number_by_hand():
    docs = race.DATA.parents[1]
    text = (docs / "guides" / "choosing.md").read_text()
    told = text.partition("## What no race measures")[0]
    assert not re.search(r"\b\d+\.\d+ (?:to|of|and)\b", told)
    completed = choices.completed(text, str)
    assert "{{" not in completed
    assert completed.count("| optimizer | targets, of") == 6  # a table for each thing to have


def test_the_lines_of_the_guide_are_optimizers():
    text = (race.DATA.parents[1] / "guides" / "choosing.md").read_text()
    questions = text.partition("## What the race shows")[0]
    lines = re.findall(r"\| `(gx\..*?)` \|", questions)
    assert len(lines) > 10 and len(re.findall(r"^\| (?!---|If)", questions, re.M)) == len(lines)
    assert all(isinstance(eval(line, {"gx": gx}), gx.types.SupportsTransform) for line in lines)


def test_the_page_of_the_site_has_no_marks_left():
    text = page.completed((race.DATA.parents[1] / "race.md").read_text(), str)
    assert "{{" not in text and "## The targets\n\n| workload" in text
    for name in entrants.LEFT_OUT:
        assert f"- {name} " in text
