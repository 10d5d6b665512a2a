"""The compositions: each line runs, and most are compared with a reference in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
import gradxform.testing as gt
from docs.site import compositions as page
from gradxform.commands.finding.composition import REFERENCE, definitions
from gradxform.commands.finding.compositions import COMPOSITIONS
from tests import references as ref
from tests.catalogue.case import Case

pytestmark = pytest.mark.numeric

# Larger than those of the page, so that some steps go far.
LR, ADAM_LR, W = 0.1, 0.05, 0.3
NAMES = page.names(lr=LR, adam_lr=ADAM_LR, w=W)
ROWS = {row.title: row for row in COMPOSITIONS}


def flat(p):
    """Whether an array is a hidden matrix to the lines of the page."""
    return np.ndim(p) == 2


def other(p):
    return not flat(p)


def falling(n):
    """The schedule of the page, along half a cosine for 1000 steps."""
    return LR * 0.5 * (1 + np.cos(np.pi * n / 1000))


def adam(b1=0.9, b2=0.999, eps=1e-8):
    return ref.adam(b1, b2, eps)


def adamw(rate, decay=1e-4, **numbers):
    return ref.sequence(adam(**numbers), ref.decay(decay), ref.scale(-rate))


def beside(matrices, others):
    """Rules of matrices and, for the others, of the rest."""
    return ref.sequence(
        *(ref.only(flat, part) for part in matrices), *(ref.only(other, part) for part in others)
    )


def hyperball(direction):
    """Wen et al.: p - lr |p| u / |u|, and back to the norm |p|."""

    def turned(g, p, t):
        u = LR * np.linalg.norm(p) * g / np.linalg.norm(g) if np.any(g) else g
        return np.linalg.norm(p) * (p + u) / np.linalg.norm(p + u) - p

    return ref.sequence(direction, ref.only(flat, ref.stateless(turned)))


def muon(rate, nesterov=True, rms=None, decay=0.0, b2=0.999, b1=0.9, others_decay=0.0):
    """Jordan's Muon, beside AdamW."""
    matrices = (ref.muon(nesterov=nesterov, debias=False), ref.shape_factor(rms), ref.decay(decay))
    others = (adam(b1, b2), ref.decay(others_decay))
    return ref.sequence(beside(matrices, others), ref.scale(-rate))


def normuon(rate, b1=0.9, **numbers):
    return ref.sequence(beside([ref.normuon(**numbers)], [adam(b1, 0.95)]), ref.scale(-rate))


def soap(rate, decay=0.0, **numbers):
    rules = beside([ref.soap(**numbers)], [adam(0.95, 0.95)])
    return ref.sequence(rules, ref.decay(decay), ref.scale(-rate))


def orthogonalized(*direction, others=None):
    """Directions of matrices, orthogonalized, with Muon's factor and rate; AdamW for the rest."""
    rules = [*direction, ref.orthogonalized(), ref.shape_factor(), ref.scale(-LR)]
    rest = (adam(), ref.decay(1e-4), ref.scale(-ADAM_LR)) if others is None else others
    return beside(rules, rest)


def muon_squared():
    """Liu et al.: the look ahead over the root of the second moment, without corrections."""

    def step(g, slots, p, t):
        m, v = slots
        m, v = 0.95 * m + 0.05 * g, 0.95 * v + 0.05 * g**2
        return (0.95 * m + 0.05 * g) / (np.sqrt(v) + 1e-10), (m, v)

    return ref.Reference(ref.zeros(2), step)


def masked_average():
    """C-Optim without Nesterov: m where m g > 0, over the share of such entries."""

    def step(g, slots, p, t):
        m = 0.95 * slots[0] + 0.05 * g
        mask = (m * g > 0).astype(float)
        return m * mask / max(mask.mean(), 1e-3), (m,)

    return ref.Reference(ref.zeros(1), step)


def cautious_decay(inner, selected=lambda p: True):
    """Chen et al., Algorithm 1: decay where the step leads towards 0, times the rate."""
    part = ref.as_tree(inner)

    def step(gs, state, ps, t):
        us, state = part.step(gs, state, ps, t)
        decays = [
            LR * W * np.where(-u * p >= 0, p, 0) * selected(p) for u, p in zip(us, ps, strict=True)
        ]
        return [u - d for u, d in zip(us, decays, strict=True)], state

    return ref.TreeReference(part.start, step)


def corrected_decay():
    """Defazio: lambda r^2 / r_max for normalized layers, lambda r for the rest."""

    def step(g, slots, p, t):
        u, slots = adam().step(g, slots, p, t)
        rate = falling(t - 1)
        return -rate * u - W * (rate**2 / LR if flat(p) else rate) * p, slots

    return ref.Reference(adam().start, step)


def multiplied(inner, factors, decays=None):
    """Groups of the page: by the index of a leaf, multiples of its step and of its decay."""
    part = ref.as_tree(inner)

    def step(gs, state, ps, t):
        us, state = part.step(gs, state, ps, t)
        many = range(len(ps))
        us = [u - (decays or {}).get(i, 0.0) * ps[i] for i, u in zip(many, us, strict=True)]
        return [factors.get(i, 1.0) * u for i, u in zip(many, us, strict=True)], state

    return ref.TreeReference(part.start, step)


def along_the_gradient(rho):
    """Foret et al.: rho g / |g| over all arrays, downhill."""

    def step(gs, state, ps, t):
        size = np.sqrt(sum(np.sum(g**2) for g in gs))
        return [-rho * g / size for g in gs], state

    return ref.TreeReference(lambda ps: (), step)


def of_leaves(*rules):
    """A rule for each leaf."""

    def step(gs, states, ps, t):
        done = [r.step(*x, t) for r, *x in zip(rules, gs, states, ps, strict=True)]
        return [u for u, _ in done], [state for _, state in done]

    return ref.TreeReference(lambda ps: [r.start(p) for r, p in zip(rules, ps, strict=True)], step)


def one_by_one(rule):
    """A rule of trees as a rule of one array."""
    return ref.Reference(
        lambda p: rule.start([p]),
        lambda g, s, p, t: (lambda us, state: (us[0], state))(*rule.step([g], s, [p], t)),
    )


ADAMW = adamw(LR, W)
# The paths that the lines of groups name, in the order of the tree.
PATHS = ("embed", "expert", "head", "layer_0", "layer_1", "lora_b")
TREE = {name: jnp.linspace(-1.0, 1.0, 12).reshape(3, 4) * (i + 1) for i, name in enumerate(PATHS)}
LAYERS = {k: TREE[k] for k in ("embed", "head", "layer_0", "layer_1")}
OF_PATHS = {
    "LoRA+": TREE,
    "groups for embeddings and experts": TREE,
    "Muon with AdamW for embeddings": TREE,
    "layer-wise learning rate decay": LAYERS,
}

REFERENCES = {
    "MuonH": hyperball(muon(ADAM_LR)),
    "AdamH": hyperball(ref.sequence(adam(b2=0.95), ref.scale(-ADAM_LR))),
    "NorMuonH": hyperball(normuon(ADAM_LR, rms=None, nesterov=True)),
    "SOAP-H": hyperball(soap(ADAM_LR)),
    "KL-SOAP-H": hyperball(soap(ADAM_LR, kl_start=0.1)),
    "KL-SOAP": soap(LR, decay=0.01, kl_start=0.1),
    "SOAP-Muon": orthogonalized(ref.soap()),
    "Muon²": orthogonalized(muon_squared()),
    "MARS-M": ref.sequence(
        ref.only(flat, ref.mars(0.95, 0.025)), muon(LR, False, 0.2, W, 0.95, others_decay=W)
    ),
    "HybridMuon": beside(
        [
            ref.muon(turns=[(3.4445, -4.775, 2.0315)] * 8 + [(2.0, -1.5, 0.5)] * 2, debias=False),
            ref.shape_factor(0.18),
            ref.scale(-LR),
        ],
        [adam(), ref.scale(-ADAM_LR)],
    ),
    "u/w floor": beside(
        [ref.muon(debias=False), ref.shape_factor(), ref.norm_floor(0.35), ref.scale(-LR)],
        [adam(), ref.decay(1e-4), ref.scale(-ADAM_LR)],
    ),
    "Moonlight Muon": muon(LR, rms=0.2, decay=W, others_decay=W),
    "Cautious Muon": ref.cautious(muon(LR), sign=-1),
    "C-Muon, masked before": orthogonalized(
        masked_average(),
        others=(one_by_one(ref.cautious(adam())), ref.decay(1e-4), ref.scale(-ADAM_LR)),
    ),
    "SF-NorMuon": ref.schedule_free(normuon(LR, b1=0.0), LR, ahead=False),
    "schedule-free Muon": ref.schedule_free(muon(LR, b1=0.0), LR),
    "MARS-Lion": ref.sequence(
        ref.mars(0.95, 0.025), ref.lion(0.95, 0.95), ref.decay(W), ref.scale(-LR)
    ),
    "Grokfast": ref.sequence(
        ref.grokfast_ema(0.98, 2.0), ref.lion(0.9, 0.99), ref.decay(1e-3), ref.scale(-LR)
    ),
    "AdamW with gradient centralization": ref.sequence(ref.stateless(ref.centralize), ADAMW),
    "AdamW with gradient clipping": ref.sequence(ref.clip_by_global_norm(1.0), ADAMW),
    "normalized SGD with momentum": ref.sequence(ref.ema(0.9, False), along_the_gradient(LR)),
    "SAM with AdamW": ref.sam(ADAMW, along_the_gradient(0.05), 2),
    "SAM with Muon": ref.sam(muon(LR), along_the_gradient(0.05), 2),
    "schedule-free ADOPT": ref.schedule_free(
        ref.sequence(ref.adopt(0.0, 0.9999, 1e-6), ref.scale(-LR)), LR
    ),
    "cautious weight decay": cautious_decay(ref.sequence(adam(), ref.scale(-LR))),
    "Muon with CWD": cautious_decay(muon(LR), flat),
    "AdamC": corrected_decay(),
    "no decay on biases and norms": ref.sequence(
        adam(), ref.only(lambda p: np.ndim(p) >= 2, ref.decay(W)), ref.scale(-LR)
    ),
    "LoRA+": multiplied(adamw(LR), {PATHS.index("lora_b"): 16.0}),
    "groups for embeddings and experts": multiplied(
        ref.sequence(adam(), ref.scale(-LR)),
        {PATHS.index("expert"): 0.5},
        {i: LR * W for i in range(len(PATHS)) if PATHS[i] != "embed"},
    ),
    "layer-wise learning rate decay": multiplied(adamw(LR), {0: 0.9**3, 1: 1.0, 2: 0.9**2, 3: 0.9}),
    "Muon with AdamW for embeddings": of_leaves(
        *(one_by_one(adamw(ADAM_LR) if x in ("embed", "head") else muon(LR)) for x in PATHS)
    ),
    "Lookahead RAdam": ref.lookahead(
        ref.sequence(ref.radam(0.9, 0.999, 1e-8), ref.scale(-LR)), 6, 0.5
    ),
    "EMA of the parameters": adamw(LR),
    "SWA with AdamW": adamw(LR),
    "WSM": ref.sequence(adam(), ref.decay(1e-4), ref.scale(lambda n: -LR * min(n / 3, 1))),
}


def case_of(title):
    tree = OF_PATHS.get(title)
    tx = eval(ROWS[title].line, NAMES | {"params": tree})
    return Case(tx, REFERENCES.get(title), rtol=1e-4, rows=False, tree=tree)


def test_what_a_row_says_was_compared_has_a_reference():
    compared = {row.title for row in COMPOSITIONS if row.compared == REFERENCE}
    assert len(compared) > 30 and compared == REFERENCES.keys()


@pytest.mark.parametrize("title", REFERENCES)
def test_a_line_computes_what_its_source_says(title):
    """In float64, up to what the small numbers make that sources add to norms at other places."""
    with jax.enable_x64(True):
        case = case_of(title)
        params = case.params(jnp.float64)
        grads = case.gradients(params, 13)  # SOAP renews its bases in the eleventh
        reference = ref.as_tree(REFERENCES[title])
        places = [np.asarray(p) for p in jax.tree.leaves(params)]
        state, followed = case.tx.init(params), reference.start(places)
        for t, g in enumerate(grads, 1):
            u, state = case.compiled(g, state, params)
            params = gx.apply_updates(params, u)
            wide = [np.asarray(x) for x in jax.tree.leaves(g)]
            expected, followed = reference.step(wide, followed, places, t)
            places = [p + x for p, x in zip(places, expected, strict=True)]
            for found, x in zip(jax.tree.leaves(u), expected, strict=True):
                np.testing.assert_allclose(found, x, rtol=0, atol=1e-5 * LR)


def moving(places):
    """An average of decay 0.999 that begins at the first parameters."""
    average = places[0]
    for p in places[1:]:
        average = 0.999 * average + 0.001 * p
    return average


def mean_of_every_other(places):
    """The mean of the parameters after steps 4, 6 and so on."""
    return np.mean(places[4::2], axis=0)


AVERAGES = {
    "EMA of the parameters": moving,
    "SWA with AdamW": mean_of_every_other,
    "WSM": mean_of_every_other,
}


@pytest.mark.parametrize("title", AVERAGES)
def test_a_line_evaluates_the_average_of_its_source(title):
    case = case_of(title)
    params = case.params()
    state, places = case.tx.init(params), [params]
    for g in case.gradients(params, 9):
        u, state = case.compiled(g, state, places[-1])
        places.append(gx.apply_updates(places[-1], u))
    for k, average in gx.eval_params(state, places[-1]).items():
        expected = jax.tree.map(
            lambda *xs: AVERAGES[title](np.asarray(xs, np.float64)), *(p[k] for p in places)
        )
        jax.tree.map(
            lambda a, e: np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-6), average, expected
        )


RUNNING = [row for row in COMPOSITIONS if not row.needs and "gd." not in row.line]


@pytest.mark.parametrize("row", RUNNING, ids=lambda row: row.title)
@pytest.mark.parametrize("promise", ["goes_to_json_and_back", "state_is_a_scan_carry"])
def test_a_line_is_a_transform_as_any_other(row, promise):
    gt.PROMISES[promise](case_of(row.title))


def test_the_lines_that_need_more_run_with_it(eight_devices):
    assert [row.title for row in COMPOSITIONS if row not in RUNNING] == ["MuLoCo", "K-FAC"]
    muloco = eval(ROWS["MuLoCo"].line, NAMES)
    assert muloco == gx.distributed.diloco(
        gx.muon(LR, debias=False, weight_decay=W), "replicas", period=30
    )


class Preconditioner:
    """The form of `kfac_jax.OptaxPreconditioner`: a transform with an extra argument."""

    def as_gradient_transform(self):
        def update(updates, state, params=None, *, precond_state, **extra):
            return jax.tree.map(jnp.multiply, precond_state, updates), state

        return gx.GradientTransformationExtraArgs(lambda params: (), update)


def test_a_curvature_from_elsewhere_is_a_part_of_a_chain():
    tx = eval(ROWS["K-FAC"].line, NAMES | {"preconditioner": Preconditioner()})
    params, g, inverse = {"w": jnp.ones(2)}, np.asarray([3.0, 4.0]), np.asarray([0.5, 0.25])
    state, m, p = tx.init(params), 0.0, 1.0
    for _ in range(3):
        extra = {"precond_state": {"w": jnp.asarray(inverse, jnp.float32)}}
        u, state = tx.update({"w": jnp.asarray(g, jnp.float32)}, state, params, **extra)
        params = gx.apply_updates(params, u)
        m = 0.9 * m + inverse * g
        p = p - LR * m
    np.testing.assert_allclose(params["w"], p, rtol=1e-6)


@pytest.mark.parametrize("row", COMPOSITIONS, ids=lambda row: row.title)
def test_a_row_is_whole(row):
    assert row.what.endswith(".") and (row.notes == "" or row.notes.endswith("."))
    assert row.link.startswith("https://") and row.source and row.line
    code = f"{definitions(row.line, page.NAMES)}\ntx = {row.line}"
    more = {"gx": gx, "gd": gx.distributed, "params": LAYERS, "preconditioner": Preconditioner()}
    if row.title in OF_PATHS or row.title == "K-FAC":
        more |= {"params": OF_PATHS.get(row.title)}
    assert hasattr(page.names(code, **more)["tx"], "update")


def test_the_page_shows_the_rows():
    assert page.PAGE.read_text("utf-8") == page.written(), f"run `python -m {page.__name__}`"
