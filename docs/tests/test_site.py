"""The generated parts of the site: formulas, links, navigation and public names."""

import html
import json
import re
import subprocess
import xml.etree.ElementTree as ET

import pytest
from markdown.extensions.toc import slugify

import gradxform as gx
from docs.site import check, elsewhere, families, nav, parts, pictures, public, samples
from docs.site.formulas import NotAFormula, tex
from docs.site.rules import rule_and_notes, rule_html
from gradxform.commands.catalog import registered_parts
from gradxform.commands.finding.compositions import COMPOSITIONS
from gradxform.commands.finding.elsewhere import elsewhere as elsewhere_rows

OWN = [e for e in registered_parts() if ":" not in e.name]
WITH_RULES = [e for e in OWN if rule_and_notes(e.doc)[0]]


@pytest.mark.parametrize(
    "formula, read",
    [
        ("u = a b / (c + d) e", r"u = \frac{a\, b}{c + d}\, e"),
        ("u = a / b / c", r"u = \frac{\frac{a}{b}}{c}"),
        ("v <- b2 v - (1 - b2) |g|^2", r"v \leftarrow b_2\, v - ( 1 - b_2 )\, \lvert g \rvert^2"),
        ("u = m / (1 - b1^t)", r"u = \frac{m}{1 - b_1^t}"),
        ("u = g / (sqrt(v) + eps)", r"u = \frac{g}{\sqrt{v} + \varepsilon}"),
        ("z <- (n'^q - n^q) p / lr", r"z \leftarrow \frac{( n'^q - n^q )\, p}{\texttt{lr}}"),
        ("c <- <g, p> m", r"c \leftarrow \langle g , p \rangle\, m"),
        ("u = x^(-alpha / k)", r"u = x^{- \alpha / k}"),
        ("u = (x^2 / k)^2^k", r"u = {\mathopen{}\left( \frac{x^2}{k} \right)^2}^k"),
        ("u = a if g <= 1", r"u = a\ \text{if}\ g \le 1"),
        ("d <- r / sum |s|", r"d \leftarrow \frac{r}{\sum \lvert s \rvert}"),
        ("u = sum of w / sum of v", r"u = \frac{\text{sum of}\ w}{\text{sum of}\ v}"),
        ("u = g[i] + c_k(i)  and so on", r"u = g_i + c_k( i ) \qquad \text{and so on}"),
        ("r_inf = 1e-8 `a_b`", r"r_{\infty} = 10^{-8}\, \texttt{a\_b}"),
    ],
)
def test_a_formula_is_read(formula, read):
    assert tex(formula) == read


@pytest.mark.parametrize(
    "formula",
    ["u = (a", "u = / b", "u = a^", "u = |a", "u = a)", "u = @", "u = a /", "= a", "u = a + , b"],
)
def test_what_is_not_a_formula_is_refused(formula):
    with pytest.raises(NotAFormula):
        tex(formula)


def written(entry):
    rule, _ = rule_and_notes(entry.doc)
    return rule_html(rule, [a.name.lstrip("*") for a in entry.arguments])


@pytest.mark.parametrize("entry", WITH_RULES, ids=lambda e: e.name)
def test_every_rule_is_mathematics(entry):
    rule, notes = rule_and_notes(entry.doc)
    assert "    u = " not in notes
    found = written(entry)
    assert found.unread == ()
    lines = [x for x in rule.split("\n") if x.startswith("    ") and x.strip()]
    assert found.formulas == len(lines) == found.markup.count('<div class="gx-tex">')
    assert "<pre>" not in found.markup


# Sets every formula of a list, and prints what KaTeX says against each.
SETS_ALL = """
const katex = require(process.argv[1]);
for (const source of JSON.parse(require("fs").readFileSync(0, "utf-8"))) {
  try { katex.renderToString(source, {throwOnError: true, strict: "error"}); }
  catch (error) { console.log(source, error.message); }
}
"""


def refused(node, formulas):
    command = [*node, "-e", SETS_ALL, str(elsewhere.DOCS / "site/assets/katex/katex.min.js")]
    done = subprocess.run(
        command, input=json.dumps(formulas), capture_output=True, text=True, check=True
    )
    return done.stdout


def test_katex_takes_every_formula(node):
    found = [
        html.unescape(source)
        for entry in WITH_RULES
        for source in re.findall('class="gx-tex">(.*?)</', written(entry).markup)
    ]
    assert len(found) > 700
    assert refused(node, found) == ""
    assert "Double superscript" in refused(node, ["x^a^b"])


def test_every_part_has_a_family_a_sample_and_a_place():
    for entry in OWN:
        if entry.kind in ("optimizers", "wrappers"):
            assert families.family_of(entry.name)
            if entry.name in samples.WITHOUT:
                assert samples.make_of(entry) is None
            else:
                assert isinstance(samples.make_of(entry)(0.1), gx.GradientTransformation)
    wrappers = {e.name for e in OWN if e.kind == "wrappers"}
    assert set(samples.WRAPPERS) | set(samples.WITHOUT) == wrappers
    assert sorted(sum(families.WRAPPERS.values(), ())) == sorted(wrappers)


def test_a_page_without_a_place_is_refused():
    with pytest.raises(ValueError, match=r"guides/new\.md: no place in the navigation"):
        nav.require_places(["index.md", "guides/new.md"])


def test_every_public_name_of_the_package_is_known():
    paths = {n.path for n in public.names()}
    assert {"gradxform.adam", "gradxform.sparse.RowSparse", "gradxform.compat.tf1.Adam"} <= paths
    assert "gradxform.sparse" not in paths and not any("._" in path for path in paths)
    assert public.homes()["gradxform.contrib.prodigy"] == "gradxform.prodigy"


def test_the_same_calls_in_other_libraries():
    calls = elsewhere.calls("adam", gx.adam)
    assert {"Optax", "Keras 3", "TensorFlow 1", "PyTorch"} <= {c.library for c in calls}
    rows = elsewhere.differences(["adamw", "scale_by_adam"])
    assert rows and all("adam" in row.cells[0] for row in rows)


@pytest.mark.parametrize("page", ["guides/from_pytorch_optimizer.md"])
def test_rows_of_another_page_keep_their_links(page):
    text = " ".join(cell for row in elsewhere.rows_of(page) for cell in row.cells)
    links = [x for x in re.findall(r"\]\(([^)]+)\)", text) if not x.startswith("http")]
    assert links
    for link in links:
        assert (elsewhere.DOCS / "optimizers" / link.partition("#")[0]).resolve().is_file(), link


def site(tmp_path, body):
    page = tmp_path / "reference" / "index.html"
    page.parent.mkdir()
    page.write_text(f"<html><body>{body}</body></html>")
    return tmp_path


@pytest.mark.parametrize(
    "body, word",
    [
        ('<a href="gone/">x</a>', "gone/ is not there"),
        ('<a class="x" href="#nowhere">x</a>', "no such place"),
        ('<img src="gone.svg">', "gone.svg is not there"),
        ('<a id="here" href="#here">x</a>', None),
        ('<a href="https://example.org/">x</a>', None),
    ],
)
def test_dead_links_are_found(tmp_path, body, word):
    found = check.dead_links(site(tmp_path, body))
    assert found == [] if word is None else word in found[0]


def test_what_comes_from_another_host_is_found(tmp_path):
    body = '<script src="https://cdn.example.org/x.js"></script>'
    assert check.other_hosts(site(tmp_path, body)) == [
        "reference/index.html loads from cdn.example.org"
    ]


def test_a_name_without_a_page_is_found(tmp_path):
    folder = site(tmp_path, '<h2 id="gradxform.adam">adam</h2>')
    names = [n for n in public.names() if n.path in ("gradxform.adam", "gradxform.sgd")]
    assert check.missing_names(folder, names) == ["gradxform.sgd is public and has no page"]


def test_pictures_are_svg():
    path = pictures.path("valley", [(-2.0, -0.2), (0.0, 0.0)], [(-1.0, 0.0)], "a <path>")
    curves = pictures.curves(
        [("a", pictures.OURS, [(1.0, 0.5), (2.0, None), (10.0, 0.01)])], "t", "x", "y", log_x=True
    )
    for picture in (path, curves, pictures.thumbnail([2.0, 0.1], [2.0, None, 0.2], "t")):
        ET.fromstring(picture)


def test_the_rules_of_a_recipe_are_those_of_its_parts():
    [adamw] = [e for e in OWN if e.name == "adamw"]
    assert list(parts.rules_of(adamw)) == [
        "scale_by_adam",
        "add_decayed_weights",
        "scale_by_learning_rate",
    ]


def test_every_optimizer_has_a_rule():
    assert [e.name for e in OWN if e.kind == "optimizers" and not parts.rules_of(e)] == []


def test_the_places_that_answers_name_are_on_the_pages():
    places = {row.page for row in COMPOSITIONS} | {row["page"] for row in elsewhere_rows()}
    assert len(places) > 40
    for place in places:
        path, _, anchor = place.partition("#")
        heads = re.findall(r"^#+ (.*)", (elsewhere.DOCS / path).read_text("utf-8"), re.MULTILINE)
        assert not anchor or anchor in [slugify(head, "-") for head in heads], place
