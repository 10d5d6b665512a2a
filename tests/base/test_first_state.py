"""The default `init` of an `ArrayRule`: the first state, as the annotations of `State` say."""

import pickle
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.base import first_state, first_state_of, slots_with, state_with
from gradxform.slots import zero_scalars_like
from gradxform.types import Array, DType, MatrixSlot, NonNegativeSlot, Slot
from tests.trees import assert_identical

PARAMS = {
    "w": jnp.ones((2, 3)),
    "narrow": jnp.ones(3, jnp.bfloat16),
    "complex": jnp.ones(2, jnp.complex64),
    "none": None,
}


class Moments(NamedTuple):
    nu: NonNegativeSlot
    count: Array
    mu: Slot
    trace: Slot


@gx.transform
class with_moments(gx.ArrayRule):
    """Keep three slots and a count."""

    mu_dtype: DType = None

    State = Moments
    locality = "entry"
    handles_complex = True

    def rule(self, g, nu, mu, trace, p):
        return g, nu, mu + g, trace


def dtypes(slot):
    return {k: x if x is None else str(x.dtype) for k, x in slot.items()}


WIDE = {"w": "float32", "narrow": "float32", "complex": "complex64", "none": None}


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_slots_and_counts_start_with_zeros(wrap):
    state = wrap(with_moments().init)(PARAMS)

    assert type(state) is Moments
    assert state.count.dtype == jnp.int32 and state.count.shape == ()
    assert dtypes(state.mu) == dtypes(state.trace) == WIDE
    assert dtypes(state.nu) == {**WIDE, "complex": "float32"}
    assert jax.tree.map(jnp.shape, state.mu) == jax.tree.map(jnp.shape, PARAMS)
    assert not any(np.any(np.asarray(x)) for x in jax.tree.leaves(state))


def test_a_field_of_the_rule_says_the_dtype_of_the_slot_of_its_name():
    state = with_moments(mu_dtype=jnp.bfloat16).init(PARAMS)

    # A complex one stays complex: bfloat16 would lose the imaginary part.
    assert set(dtypes(state.mu).values()) == {"bfloat16", "complex64", None}
    assert dtypes(state.trace) == WIDE
    assert dtypes(state.nu) == {**WIDE, "complex": "float32"}


def test_a_field_of_the_rule_says_the_dtype_of_a_slot_that_is_not_negative():
    class Squares(NamedTuple):
        nu: NonNegativeSlot

    @gx.transform
    class with_squares(gx.ArrayRule):
        nu_dtype: DType = None

        State = Squares

        def rule(self, g, nu, p):
            return g, nu

    assert dtypes(with_squares().init(PARAMS).nu) == {**WIDE, "complex": "float32"}
    assert set(dtypes(with_squares(nu_dtype="bfloat16").init(PARAMS).nu).values()) == {
        "bfloat16",
        None,
    }


def test_slots_do_not_share_buffers():
    state = with_moments().init(PARAMS)

    pointers = [x.unsafe_buffer_pointer() for x in jax.tree.leaves(state)]
    assert len(set(pointers)) == len(pointers)


def test_the_state_is_that_of_a_written_init():
    @gx.transform
    class by_hand(with_moments):
        def init(self, params):
            return Moments(
                nu=gx.slots.real_zeros_like(params),
                count=gx.slots.zero_count(),
                mu=gx.slots.zeros_like(params, self.mu_dtype),
                trace=gx.slots.zeros_like(params),
            )

    for dtype in (None, "bfloat16"):
        default, written = with_moments(mu_dtype=dtype), by_hand(mu_dtype=dtype)
        assert str(jax.make_jaxpr(default.init)(PARAMS)) == str(
            jax.make_jaxpr(written.init)(PARAMS)
        )


class Count(NamedTuple):
    count: Array


@gx.transform
class maybe_counts(gx.ArrayRule):
    """Count the steps, if asked to."""

    counts: bool = False

    @property
    def State(self):
        """The class of the state."""
        return Count if self.counts else gx.EmptyState

    def rule(self, g, p):
        return g


def test_a_state_may_depend_on_the_fields():
    assert maybe_counts().init(PARAMS) == gx.EmptyState()
    assert type(maybe_counts(counts=True).init(PARAMS)) is Count


def test_a_rule_without_a_state_is_empty():
    @gx.transform
    class nothing(gx.ArrayRule):
        def rule(self, g, p):
            return g

    assert nothing.State is gx.EmptyState
    assert nothing().init(PARAMS) == gx.EmptyState()


def test_a_subclass_has_the_state_that_it_names():
    @gx.transform
    class counts_only(with_moments):
        State = Count

    assert type(counts_only().init(PARAMS)) is Count


def test_annotations_may_be_strings_that_nobody_resolves():
    class Written(NamedTuple):
        mu: "somewhere.Slot"  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
        count: "somewhere.Array"  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

    @gx.transform
    class written(gx.ArrayRule):
        State = Written

        def rule(self, g, mu, p):
            return g, mu

    state = written().init(PARAMS)
    assert dtypes(state.mu) == WIDE and state.count.dtype == jnp.int32


class Steps(NamedTuple):
    mu: Slot
    steps: Array


class Matrices(NamedTuple):
    q: MatrixSlot


class CountOfFloats(NamedTuple):
    count: float


@pytest.mark.parametrize("state", [Steps, Matrices, CountOfFloats])
@pytest.mark.parametrize("base", [gx.ArrayRule, with_moments], ids=lambda c: c.__name__)
def test_a_field_of_another_kind_needs_an_init(state, base):
    namespace = {"State": state, "rule": lambda self, g, *slots: (g, *slots)}
    field = state._fields[-1]

    with pytest.raises(
        TypeError, match=f"^unclear: define init, or .* '{field}' of {state.__name__}"
    ):
        gx.transform(type("unclear", (base,), dict(namespace)))

    written = {**namespace, "init": lambda self, params: state(*(0 for _ in state._fields))}
    gx.transform(type("clear", (base,), written))


def test_a_property_with_a_field_of_another_kind_needs_an_init():
    @gx.transform
    class unclear(gx.ArrayRule):
        @property
        def State(self):
            """The class of the state."""
            return Steps

        def rule(self, g, mu, p):
            return g, mu

    with pytest.raises(TypeError, match=r"^unclear: define init, or .* 'steps' of Steps"):
        unclear().init(PARAMS)


def test_a_state_that_is_no_named_tuple_is_refused():
    with pytest.raises(TypeError, match=r"^unclear: State must be the class of a NamedTuple, got"):
        gx.transform(type("unclear", (gx.ArrayRule,), {"State": dict, "rule": lambda self, g: g}))


def test_annotations_are_read_once_for_a_class(monkeypatch):
    tx = with_moments(mu_dtype="bfloat16")
    tx.init(PARAMS)

    monkeypatch.setattr(first_state, "hints_of", None)
    with_moments().init(PARAMS)
    with_moments(mu_dtype="float32").init(PARAMS)
    assert type(pickle.loads(pickle.dumps(tx)).init(PARAMS)) is Moments


def test_help_says_how_the_state_starts():
    assert "annotations of `State`" in (with_moments.init.__doc__ or "")
    assert "annotations of `State`" in (with_moments().init.__doc__ or "")


def test_an_init_names_only_the_fields_that_start_otherwise():
    class Product(NamedTuple):
        count: Array
        product: Array
        mu: Slot

    @gx.transform
    class with_product(with_moments):
        State = Product

        def init(self, params):
            return first_state_of(self, params, product=jnp.ones(()))

        def rule(self, g, mu, p):
            return g, mu

    state = with_product(mu_dtype="bfloat16").init(PARAMS)
    assert type(state) is Product and state.product == 1 and state.count == 0
    assert dtypes(state.mu)["w"] == "bfloat16"


def test_a_count_under_another_name_starts_with_0():
    @gx.transform
    class with_steps(with_moments):
        State = Steps
        step_fields = ("steps",)

        def rule(self, g, mu, p):
            return g, mu

    state = with_steps().init(PARAMS)
    assert state.steps.dtype == jnp.int32 and state.steps == 0


def test_an_option_chooses_the_class_of_the_state():
    @gx.transform
    class optional(gx.ArrayRule):
        counts: bool = False

        State = state_with("counts", gx.EmptyState, Count)

        def rule(self, g, p):
            return g

    assert type(optional().init(PARAMS)) is gx.EmptyState
    assert type(optional(counts=True).init(PARAMS)) is Count


def test_a_slot_is_none_without_its_option():
    class Both(NamedTuple):
        first: Slot
        last: NonNegativeSlot

    @gx.transform
    class optional(gx.ArrayRule):
        after: int | None = None

        State = Both
        unused_slots = slots_with(first="after")

        def rule(self, g, first, last, p):
            assert (first is None) == (self.after is None)
            return g, first if first is None else first + g, last + 1

    params = {"w": jnp.ones(2)}
    without, kept = optional(), optional(after=0)  # 0 is a number, not an option left out
    state, both = without.init(params), kept.init(params)
    assert state.first is None and both.first is not None
    assert_identical(without.update(params, state, params)[1], Both(None, {"w": jnp.ones(2)}))
    assert_identical(kept.update(params, both, params)[1], Both(params, params))
    with pytest.raises(ValueError, match=r"optional: the state has arrays in first, which this"):
        without.update(params, both, params)
    with pytest.raises(ValueError, match=r"a leaf \['w'\], the state's first has none"):
        kept.update(params, state, params)


def test_a_scalar_for_each_parameter_is_real_and_wide():
    zeros = zero_scalars_like(PARAMS)
    assert dtypes(zeros) == {**WIDE, "complex": "float32"}
    assert all(x.shape == () for x in jax.tree.leaves(zeros))
