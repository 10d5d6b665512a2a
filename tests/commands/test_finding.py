"""`gx.find` and `python -m gradxform find`: what answers to a name."""

import ast
import collections
import inspect
import json
import re

import pytest

import gradxform as gx
from docs.site import found as generated
from docs.site.from_pytorch.row import NUMBERS
from gradxform._names import guesses
from gradxform.commands.finding.compositions import COMPOSITIONS
from gradxform.commands.finding.elsewhere import DATA, elsewhere
from gradxform.optimizers.by_name import OPTIMIZERS
from tests.commands.test_command_line import refused, run

# Names with the line of one answer, the first of all.
FIRST = {
    "MuonH muon-h MUON_H": "gx.chain(gx.muon(adam_lr, debias=False), hyperball)",
    "sf-adopt SF_ADOPT schedule-free_ADOPT": "gx.schedule_free(gx.adopt(lr, b1=0.0), lr)",
    "Adam-mini AdamMini": "gx.adam_mini(learning_rate)",
    "adamw optax.adamw gx.adamw": "gx.adamw(learning_rate)",
    "torch.optim.RAdam": "gx.radam(lr, eps_before_correction=True)",
    "tf.train.AdamOptimizer": "gx.compat.tf1.Adam()",
    "tf.train.GradientDescentOptimizer": "gx.compat.tf1.GradientDescent(lr)",
    "keras.optimizers.Lamb": "gx.compat.keras3.Lamb()",
    "timm.cadamw": "gx.cautious(tx, xi=0.0)",
    "layerwise_decay": "gx.layerwise_decay(params, decay)",
    "diloco": "gx.distributed.diloco(inner, axis)",
    "model_ema": "gx.moving_average(inner)",
    "PagedAdamW": "gx.offload_state(inner)",
    "KLSOAP": "gx.soap(lr, kl_start=0.1)",
    "SWATS": "",
}


@pytest.mark.parametrize("names, line", FIRST.items())
def test_a_name_leads_to_a_line(names, line):
    for name in names.split():
        assert gx.find(name)[0].line == line, name


def test_answers_come_from_everywhere():
    kinds = [answer.kind for answer in gx.find("AdamC")]
    assert kinds == ["composition", "pytorch_optimizer", "timm"]
    kinds = [answer.kind for answer in gx.find("Adam")]
    assert kinds[0] == "optimizer" and {"PyTorch", "Keras 3", "TensorFlow 1"} <= set(kinds)
    assert {answer.kind for answer in gx.find("torch.optim.Adam")} == {"PyTorch"}
    assert gx.find("port")[0].kind == "module" and gx.find("RowSparse")[0].kind == "class"
    assert [answer.name for answer in gx.find("Muon²")] == ["Muon²"]


def test_words_for_arguments_are_answered():
    found = gx.find("lr")
    assert [answer.name for answer in found] == ["current_learning_rate", "lr"]
    assert "'learning_rate' or 'step_size'" in found[-1].text and found[-1].line == ""
    assert "'b1' and 'b2'" in gx.find("betas")[-1].text
    assert gx.find("maximize")[-1].text.startswith("To maximize, negate the gradients")


def said_of(name):
    """The text of the answer that is an argument, which is the last of all."""
    answer = gx.find(name)[-1]
    assert (answer.name, answer.kind, answer.line) == (name, "argument", "")
    return answer.text


def test_an_argument_says_which_parts_take_it():
    assert re.fullmatch(
        r"eps is an argument of \d\d+ optimizers \((\w+, ){6}\.\.\.\), \d\d+ transforms and \d "
        r"wrappers\. Other libraries call it epsilon\.",
        said_of("eps"),
    )
    assert said_of("min_ndim") == "min_ndim is an argument of 1 transform (average_spatial_axes)."
    assert gx.find("EPS")[0].text == gx.find("eps")[0].text


@pytest.mark.parametrize(
    "name, theirs", [("eps", "epsilon"), ("learning_rate", "lr"), ("b1", "betas"), ("b2", "rho")]
)
def test_an_argument_says_what_other_libraries_call_it(name, theirs):
    others = re.search(r"Other libraries call it (.*?)\.", said_of(name))
    assert others is not None and theirs in re.split(", | or ", others[1])
    assert f"{name} is an argument of " in said_of(theirs)


def test_every_argument_counts_the_optimizers_whose_signatures_have_it():
    counts = collections.Counter(
        name for part in OPTIMIZERS.values() for name in inspect.signature(part).parameters
    )
    assert counts["eps"] > 50 and counts["b3"] > 1
    for name, count in counts.items():
        said = f"{name} is an argument of {count} optimizer{'s' if count > 1 else ''} ("
        assert said in said_of(name), name


def test_the_parts_that_most_libraries_have_come_first():
    shown = [re.findall(r"\w+", names) for names in re.findall(r"\((.*?)\)", said_of("nesterov"))]
    assert len(shown) == 1 and {"sgd", "adam", "adamw", "muon", "rmsprop"} < set(shown[0])
    assert {"adam", "adamw", "lion"} <= set(re.findall(r"\w+", said_of("b2")))


def test_arguments_that_errors_suggest_are_arguments():
    for words in guesses._ARGUMENTS:
        for word in words.split():
            for argument in guesses.arguments_for(word):
                assert f"{argument} is an argument of " in said_of(argument)


def test_an_answer_prints_and_is_data():
    found = gx.find("SOAP-H")
    text = repr(found)
    for said in ("SOAP-H (composition)", "    matrices = gx.ndim_at_least(2)", found[0].line):
        assert said in text
    assert "result 27" in text and "guides/compositions.md#soap-h" in text
    assert max(map(len, text.splitlines())) <= 110
    assert json.loads(json.dumps(found.as_data()))[0]["line"] == found[0].line
    assert "](" not in repr(gx.find("K-FAC")) and bool(found) and list(found) == [*found.answers]


def test_a_name_that_nothing_has_gets_the_nearest():
    found = gx.find("MuonHH")
    assert not found and len(found) == 0 and found.as_data() == []
    assert repr(found).startswith("nothing is named 'MuonHH'. Did you mean 'MuonH'")
    assert repr(gx.find("")) == "nothing is named ''."
    assert len(repr(gx.find("x" * 1000))) < 200
    with pytest.raises(TypeError, match="find: name must be a string, got the function adam"):
        gx.find(gx.adam)  # pyright: ignore[reportArgumentType]


def test_the_command_prints_the_same(capsys):
    assert run(capsys, "find", "muon-h") == f"{gx.find('MuonH')!r}\n"
    assert json.loads(run(capsys, "find", "lr", "--json")) == gx.find("lr").as_data()
    assert "nothing is named 'mounh'. Did you mean" in refused(capsys, "find", "mounh")
    assert "Did you mean 'epsilon'" in refused(capsys, "find", "epsilonn")  # an argument
    assert run(capsys, "show", "MuonH") == run(capsys, "find", "MuonH")
    assert json.loads(run(capsys, "show", "MuonH", "--json")) == gx.find("MuonH").as_data()
    assert "gx.layerwise_decay(params, decay)" in run(capsys, "show", "layerwise_decay")


# ------------------------------------------------------------------- everything can be found


def test_every_composition_answers_to_all_its_names():
    for row in COMPOSITIONS:
        for name in (*row.names, row.title.upper(), row.title.replace("-", "_")):
            assert row.line in [answer.line for answer in gx.find(name)], name


def test_no_title_is_there_twice():
    titles = [guesses.plain(row.title) for row in COMPOSITIONS]
    pages = [row.page for row in COMPOSITIONS]
    assert len(set(titles)) == len(titles) == len(set(pages))


def test_every_word_of_error_messages_is_answered():
    for words in guesses._PARTS:
        for word in words.split():
            assert gx.find(word), word
    for words in [*guesses._ARGUMENTS, *guesses._PARTS_OF_ARGUMENTS]:
        for word in words.split():
            assert gx.find(word)[-1].kind == "argument", word


def test_the_rows_are_those_of_the_guides():
    assert DATA.read_text("utf-8") == generated.text(), f"run `python -m {generated.__name__}`"
    libraries = {row["library"] for row in elsewhere()}
    assert {"PyTorch", "timm", "Keras", "Keras 3", "TensorFlow 1", "RETURNN"} <= libraries


ROWS = [(name, row) for row in elsewhere() for name in row["names"]]


@pytest.mark.parametrize("name, row", ROWS, ids=[f"{row['there']}: {x}" for x, row in ROWS])
def test_every_name_of_the_guides_is_found_with_its_line(name, row):
    for asked in (name, name.rpartition(".")[2]):
        lines = [answer.line for answer in gx.find(asked)]
        assert row.get("line", "") in lines, asked
    assert row.get("line") or row.get("text")


# What stands for what only the reader has, beside the numbers of the rows.
OUTER = {"schedule": gx.constant_schedule(0.1), "tx": gx.sgd(0.1), "n": 4, "b1": 0.9, "rank": 2}
CALLS = [
    row for row in elsewhere() if "guides/" in row["page"] and "recorded" in row.get("compared", "")
]


def numbers_of(line):
    """Something for each name of a line that is an argument there."""
    names = {x.id for x in ast.walk(ast.parse(line)) if isinstance(x, ast.Name)}
    return {name: 0.1 for name in names - {"gx", "float"}}


@pytest.mark.parametrize("row", CALLS, ids=lambda row: row["there"])
def test_a_line_of_a_guide_runs_with_its_definitions(row):
    names = {"gx": gx, **numbers_of(row["line"]), **NUMBERS, **OUTER}
    exec(row.get("definitions", ""), names)
    whole = {x: 4 for x in re.findall(r"\b(k|warmup_steps|rho)\b", row["line"]) if x in names}
    tx = eval(row["line"], names | (whole if "definitions" not in row else {}))
    assert callable(tx.init) and callable(tx.update)


FACTORIES = [row for row in elsewhere() if row.get("line", "").startswith("gx.compat.")]


@pytest.mark.parametrize("row", FACTORIES, ids=lambda row: row["line"])
def test_a_line_of_a_door_names_a_factory(row):
    call = ast.parse(row["line"], mode="eval").body
    assert isinstance(call, ast.Call) and callable(eval(ast.unparse(call.func), {"gx": gx}))
    names = {x.id for x in ast.walk(call) if isinstance(x, ast.Name)} - {"gx"}
    if names <= {"lr", "momentum"}:
        assert hasattr(eval(row["line"], {"gx": gx, "lr": 0.1, "momentum": 0.9}), "update")


@pytest.mark.parametrize("row", elsewhere(), ids=lambda row: row["there"][:60])
def test_a_line_names_what_there_is(row):
    ast.parse(row.get("line", ""))
    for path in re.findall(r"\bgx\.([\w.]+)", row.get("line", "")):
        thing = gx
        for name in path.split("."):
            thing = getattr(thing, name)
