"""The examples `race.py`, `new_optimizer.py` and `train_embeddings.py` run, draw, and refuse."""

import re
import runpy
import subprocess
import sys
from collections import Counter

import command_line
import embeddings_corpus
import embeddings_model
import jax
import jax.numpy as jnp
import new_optimizer
import numpy as np
import problems
import pytest
import race
import train_embeddings

import gradxform as gx
from gradxform import testing
from gradxform.values.registry import REGISTRY
from tests.environment import ROOT, environment, limit
from tests.examples.example_runs import refused


def run_race(capsys, *argv):
    """Run the race, which must succeed; return what it prints."""
    assert race.main([str(a) for a in argv]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


PROGRAMS = [
    path.name
    for path in sorted((ROOT / "examples").glob("*.py"))
    if 'if __name__ == "__main__":' in path.read_text()
]


WITHOUT = """
import pathlib, runpy, sys
sys.argv = sys.argv[1:]
sys.path.insert(0, str(pathlib.Path(sys.argv[0]).parent))
for package in ("flax", "h5py", "keras", "matplotlib", "orbax", "ray", "rich", "sklearn"):
    sys.modules[package] = None
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_example_says_what_to_install(name):
    path = str(ROOT / "examples" / name)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, path, "--help"],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=limit(5, 60),
        check=False,
    )
    extras = "examples,keras" if name == "from_keras.py" else "examples"
    assert done.returncode == 2 and done.stdout == ""
    assert re.fullmatch(
        rf"{name}: error: .* (is|are) not installed; install gradxform\[{extras}\]\.\n", done.stderr
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_example_answers_help(name, monkeypatch, capsys):
    assert len(PROGRAMS) > 6
    monkeypatch.setattr(sys, "argv", [str(ROOT / "examples" / name), "--help"])
    for rule in [x for x in REGISTRY if x.startswith("example:")]:
        monkeypatch.delitem(REGISTRY, rule)  # the program registers its own
    with pytest.raises(SystemExit) as end:
        runpy.run_path(sys.argv[0], run_name="__main__")
    out, err = capsys.readouterr()
    assert not end.value.code and out.startswith(f"usage: {name}"), err
    assert "--help" in out and err == ""


# --------------------------------------------------------------------------------- new_optimizer


def test_a_new_optimizer_needs_less_than_sixty_lines():
    assert len((ROOT / "examples" / "new_optimizer.py").read_text().splitlines()) < 60


def test_the_new_optimizer_keeps_every_promise_and_trains():
    rule = new_optimizer.scale_by_agreement
    reference = testing.Reference(testing.zeros(2), new_optimizer.reference)
    report = testing.check(rule(), reference).raise_if_broken()
    assert {f.promise for f in report.skipped} == {
        "derivatives_are_finite",
        "derivatives_equal_differences",
        "what_is_inside_knows_the_parameters",
        "what_is_inside_is_told_of_moves",
        "moves_are_known_on_both_sides",
        "what_is_inside_takes_the_inner_steps",
        "what_comes_after_takes_its_updates",
        "names_the_axes_that_it_needs",
        "a_nan_goes_no_further_than_a_guard",
    }
    tx = gx.chain(rule(), gx.scale_by_learning_rate(0.1))
    assert gx.from_json(gx.to_json(tx)) == tx
    assert new_optimizer.train(tx, 30) < 0.5 * new_optimizer.train(tx, 0)


def test_the_new_optimizer_runs_as_it_stands():
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "new_optimizer.py")],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=limit(60, 300),
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"scale_by_agreement\(b=0\.9\): 2\d kept, \d+ skipped\n", done.stdout)
    losses = re.findall(r"loss (\S+), of adam (\S+)", done.stdout)
    assert len(losses) == 3 and float(losses[1][0]) < 0.1


# ------------------------------------------------------------------------------------------ race


def test_a_race_draws_and_lists_every_result(tmp_path, capsys):
    argv = ["--optimizers", "adam=0.1,adam,polyak_sgd", "--steps", "30", "--out", tmp_path / "x"]
    out = run_race(capsys, *argv, "--problem", "quadratic,rosenbrock")
    assert out.count(" in ") == 6  # no terminal: a line for each result
    assert "\x1b" not in out
    assert "a quadratic of condition 50, 30 steps" in out and "Rosenbrock's valley" in out
    assert "adam=0.1" in out and "its own" in out
    assert out.endswith(f"Wrote {tmp_path / 'x' / 'race.png'}\n")
    assert (tmp_path / "x" / "race.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "x" / "race.png").stat().st_size > 30_000


def test_a_race_on_digits_measures_what_is_held_out(tmp_path, capsys):
    named = "adam=0.01,sophia=0.01,schedule_free_adamw=0.01"
    argv = ["--optimizers", named, "--problem", "digits", "--steps", "60"]
    out = run_race(capsys, *argv, "--out", tmp_path)
    assert "held-out" in out and "│ schedule_free_adamw=0.01 │" in out
    first = next(line for line in out.splitlines() if "│ 1 │" in line)
    accuracy = float(first.split("│")[5])
    assert accuracy > 0.9
    assert (tmp_path / "race.png").stat().st_size > 30_000


def test_the_best_learning_rate_wins():
    problem = problems.quadratic(0)
    best = race.run(problem, race.Entrant("sgd", None, False), 60, 0, lambda: None)
    for rate in (best.rate, best.rate / 3):
        one = race.run(problem, race.Entrant("sgd", rate, False), 60, 0, lambda: None)
        assert one.score >= best.score * (1 - 1e-4)
    assert best.loss[0] == pytest.approx(float(problem.total(problem.params)))
    assert best.steps[-1] == 60 and len(best.loss) == len(best.steps) == len(best.path)
    np.testing.assert_allclose(best.path[0], problem.params["xy"])
    assert best.state_bytes == 0
    assert np.all(np.isfinite(best.loss))


@pytest.mark.parametrize("name", ["adam", "schedule_free_adamw"])
def test_a_race_gives_the_result_of_the_plain_loop(name):
    problem = problems.rosenbrock(0)
    raced = race.run(problem, race.Entrant(name, 0.1, False), 20, 0, lambda: None)
    tx, params = gx.OPTIMIZERS[name](0.1), problem.params
    state = tx.init(params)
    for _ in range(20):
        updates, state = tx.update(jax.grad(problem.total)(params), state, params)
        params = gx.apply_updates(params, updates)
    params = gx.eval_params(state, params)
    np.testing.assert_allclose(raced.path[-1], params["xy"], rtol=1e-5)


def test_a_slow_optimizer_goes_on_with_fewer_rates(monkeypatch):
    monkeypatch.setattr(race, "LIMIT", 0.0)
    problem = problems.quadratic(0)
    ticks = []
    result = race.run(problem, race.Entrant("sgd", None, False), 40, 0, lambda: ticks.append(1))
    assert len(ticks) == race.CHUNKS and result.rate in problem.rates
    assert len(result.loss) == 41 and result.score < result.loss[0]


def test_a_wild_rate_does_not_win():
    problem = problems.rosenbrock(0)
    result = race.run(problem, race.Entrant("adagrad", None, False), 100, 0, lambda: None)
    assert np.max(result.loss) <= race.WILD * result.loss[0]


def test_a_network_of_digits_can_be_raced_on_by_every_optimizer():
    """Traced only, one step each: what can be made by name gets the extra arguments it needs."""
    problem = problems.digits(0)
    batch = jnp.asarray(problem.batches(1)[0])
    for name in sorted(gx.OPTIMIZERS):
        try:
            tx = command_line.make_by_name(name, 0.1, seed=0)
        except command_line.Refused as error:
            assert "can only be made in code" in str(error)
            continue

        def step(params, state, tx=tx):
            def loss(p):
                return problem.loss(p, batch)

            value, grads = jax.value_and_grad(loss)(params)
            extra = {"value": value, "grad": grads, "value_fn": loss, "obj_fn": loss}
            return tx.update(grads, state, params, **extra)

        updates, _ = jax.eval_shape(step, problem.params, tx.init(problem.params))
        assert jax.tree.structure(updates) == jax.tree.structure(problem.params), name


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--optimizers adm", "no optimizer named 'adm'. Did you mean 'adam'"),
        ("--optimizers adam,qqqq", "List them with: python -m gradxform list optimizers"),
        ("--optimizers adam=", "--optimizers adam=: the learning rate must be a positive number"),
        ("--optimizers adam=-1", "the learning rate must be a positive number, got '-1'."),
        ("--optimizers adam=fast", "the learning rate must be a positive number, got 'fast'."),
        ("--optimizers polyak_sgd=0.1", "polyak_sgd takes no learning rate; leave it out."),
        ("--optimizers dpsgd", "dpsgd needs l2_norm_clip, noise_multiplier too, and can only be"),
        ("--optimizers ,", "name at least one optimizer and one problem."),
        ("--problem digit", "no problem named 'digit'. Did you mean 'digits'?"),
        ("--problem qqqq", "There are rosenbrock, quadratic, digits."),
        ("--problm digits", "unknown argument '--problm'. Did you mean '--problem'?"),
        ("--steps 0", "--steps: must be a whole number from 1, got '0'"),
        ("--seed x", "--seed: must be a whole number from 0, got 'x'"),
        ("adam", "unknown argument 'adam'. See --help."),
    ],
)
def test_a_bad_option_is_refused_in_one_line(argv, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert words in refused(race, capsys, *argv.split())
    assert not list(tmp_path.iterdir())  # nothing was written


def test_an_out_that_is_a_file_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert "File exists" in refused(race, capsys, "--out", tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_an_optimizer_that_does_not_fit_is_refused(tmp_path, capsys, monkeypatch):
    def wants_more(learning_rate):
        def update(updates, state, params=None, *, curvature):
            return updates, state

        return gx.GradientTransformationExtraArgs(lambda p: (), update)

    monkeypatch.setitem(gx.OPTIMIZERS, "wants_more", wants_more)
    argv = ["--optimizers", "wants_more", "--problem", "quadratic", "--out", tmp_path]
    message = refused(race, capsys, *argv)
    assert "wants_more cannot race on a quadratic of condition 50: " in message
    assert "needs the extra argument 'curvature'" in message


# ------------------------------------------------------------------------------ train_embeddings


def few_texts():
    """A text to read quickly, in which words have their company."""
    random = np.random.default_rng(0)
    groups = [[f"{kind}_{i}" for i in range(40)] for kind in ("red", "green", "blue")]
    for _ in range(60):
        yield " ".join(random.choice(groups[random.integers(3)], 400))


def test_embeddings_train_by_all_methods_and_are_drawn(tmp_path, capsys):
    argv = ["--steps", "50", "--dim", "16", "--batch-size", "512", "--learning-rate", "0.04"]
    argv += ["--vocabulary", "8000", "--words", "import,socket", "--out", str(tmp_path / "x")]
    assert train_embeddings.main(argv) == 0
    out, err = capsys.readouterr()
    assert err == "" and "\x1b" not in out
    assert "2 tables of 8000 words x 16" in out
    assert out.count("  held-out loss  ") == 25  # no terminal: a line for each measurement
    assert "Neighbors by " in out and "│ socket │" in out
    last = out.splitlines()[-1]
    ends = re.findall(r"(\S+) in \S+ s by ([a-z-]+)", last)
    assert [name for _, name in ends] == ["dense", "lazy", "catch-up"]
    assert all(float(loss) < 3.9 for loss, _ in ends), last  # from 6 log 2 = 4.159
    path = tmp_path / "x" / "embeddings.png"
    assert last.endswith(f"; wrote {path}")
    assert path.read_bytes()[:4] == b"\x89PNG" and path.stat().st_size > 30_000


def test_the_standard_library_has_enough_words():
    words = Counter(w for t in embeddings_corpus.texts() for w in embeddings_corpus.WORD.findall(t))
    assert len(words) > 30_000 and {"import", "socket", "ValueError"} <= words.keys()


def test_pairs_are_of_one_passage_and_the_held_out_stay_out():
    corpus = embeddings_corpus.Corpus(few_texts(), 120)
    assert len(corpus.words) == 120 and list(corpus.counts) == sorted(corpus.counts)[::-1]
    assert len(corpus.text) == 60 * 400 and set(np.bincount(corpus.passage)) == {400}
    of_group = np.array([word.split("_")[0] for word in corpus.words])
    for seed in (0, 1):
        held_out = corpus.held_out_pairs(3, 5, seed)
        batch = next(corpus.batches(10, 64, 3, 5, seed))
        assert batch.centre.shape == (10, 64) and batch.context.shape == (10, 64, 6)
        for pairs in (held_out, batch):  # each text is of one group
            assert np.all(of_group[pairs.centre] == of_group[pairs.context[..., 0]])
            assert np.any(of_group[pairs.centre] != of_group[pairs.context[..., 1]])
        again = next(corpus.batches(10, 64, 3, 5, seed))
        assert all(np.array_equal(a, b) for a, b in zip(batch, again, strict=True))
        other = next(corpus.batches(10, 64, 3, 5, seed + 1))
        assert not np.array_equal(batch.centre, other.centre)
    corpus.text = np.where(corpus.held_out, 0, 1).astype(np.int32)
    assert not np.any(corpus.held_out_pairs(3, 5, 0).centre)
    assert np.all(next(corpus.batches(10, 4, 3, 5, 0)).centre)


def test_the_methods_differ_once_a_row_has_waited():
    corpus = embeddings_corpus.Corpus(few_texts(), 120)
    model = embeddings_model.SkipGram(120, 4)
    batches = next(corpus.batches(6, 8, 3, 5, 0))
    params = model.init(jax.random.key(0), jax.tree.map(lambda x: x[0], batches))
    loss = embeddings_model.loss_of(model)

    tables = {}
    for name, method in embeddings_model.METHODS.items():
        trainer = embeddings_model.Trainer(method, loss, params, 0.1, batches)
        for steps in (1, 5):
            assert trainer.train(batches, steps) == pytest.approx(4, rel=0.5)
            table = trainer.params["params"]["context"]["embedding"]
            tables.setdefault(name, []).append(np.asarray(table))
        assert trainer.seconds > 0

    dense, lazy, catch_up = tables.values()
    np.testing.assert_allclose(lazy[0], dense[0], atol=1e-6)
    moved = np.flatnonzero(np.any(lazy[0], axis=1))  # from zeros
    assert 0 < len(moved) < 60 and set(moved) <= set(batches.context[0].ravel())
    assert np.linalg.norm(catch_up[1] - dense[1]) < 0.5 * np.linalg.norm(lazy[1] - dense[1])


def test_neighbours_of_a_word_share_its_contexts(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(train_embeddings, "texts", few_texts)
    monkeypatch.setattr(embeddings_corpus, "FREQUENT", 1.0)
    argv = ["--steps", "300", "--dim", "8", "--batch-size", "128", "--learning-rate", "0.02"]
    argv += ["--methods", "catch-up", "--words", "red_7,blue_3", "--out", str(tmp_path)]
    assert train_embeddings.main(argv) == 0
    out = capsys.readouterr().out
    rows = [
        line.split("│")[1:3] for line in out.splitlines() if "│ red_7" in line or "│ blue" in line
    ]
    assert len(rows) == 2
    for word, nearest in rows:
        kinds = re.findall(r"([a-z]+)_\d+ [\d.]+", nearest)
        assert len(kinds) >= 4 and set(kinds) == {word.strip().split("_")[0]}


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--methods lazi", "no method named 'lazi'. Did you mean 'lazy'?"),
        ("--methods qqqq", "There are dense, lazy, catch-up."),
        ("--methods ,", "name at least one method."),
        ("--words red_1,gren_2", "--words: 'gren_2' is not in the vocabulary. Did you mean 'green"),
        ("--batch-size 1000000", "--batch-size 1000000: the text does not have so many pairs."),
        ("--window 51", "--window 51: must be at most 50."),
        ("--step 3", "unknown argument '--step'. Did you mean '--steps'"),
        ("--steps 0", "--steps: must be a whole number from 1, got '0'"),
        ("--vocabulary 1", "--vocabulary: must be a whole number from 2, got '1'"),
        ("--learning-rate -1", "--learning-rate: must be a positive number, got '-1'"),
        ("--negatives 2000000000", "not enough memory; ask for smaller tables or batches."),
    ],
)
def test_a_bad_option_of_the_embeddings_is_refused_in_one_line(
    argv, words, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train_embeddings, "texts", few_texts)
    assert words in refused(train_embeddings, capsys, *argv.split())
    assert not list(tmp_path.rglob("*.png"))


def test_a_diverging_embedding_run_is_stopped(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(train_embeddings, "texts", few_texts)
    argv = ["--learning-rate", "1e38", "--methods", "lazy", "--steps", "50", "--out", tmp_path]
    message = refused(train_embeddings, capsys, *argv, code=1)
    assert re.search(r"the loss of lazy is (nan|inf) by step \d+; lower --learning-rate", message)
