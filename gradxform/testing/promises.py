"""All promises, in the order in which `check` tries them: the most informative come first."""

from gradxform.testing.promise import Promise
from gradxform.testing.promises_boxes import boxes_name_the_axes_of_their_slots
from gradxform.testing.promises_derivatives import (
    derivatives_are_finite,
    derivatives_equal_differences,
)
from gradxform.testing.promises_exchanges import names_the_axes_that_it_needs
from gradxform.testing.promises_form import (
    asks_for_params_by_name,
    goes_to_json_and_back,
    holes_pass,
    is_a_value,
    its_numbers_can_be_in_the_state,
    leaks_no_traced_arrays,
    state_is_a_scan_carry,
    takes_abstract_parameters,
    takes_params_by_keyword,
)
from gradxform.testing.promises_inside import (
    a_nan_goes_no_further_than_a_guard,
    moves_are_known_on_both_sides,
    what_is_inside_is_told_of_moves,
    what_is_inside_knows_the_parameters,
)
from gradxform.testing.promises_locality import looks_no_further_than_it_says
from gradxform.testing.promises_measures import (
    what_comes_after_takes_its_updates,
    what_is_inside_takes_the_inner_steps,
)
from gradxform.testing.promises_moves import (
    copies_move_with_the_parameters,
    says_where_its_steps_lead,
)
from gradxform.testing.promises_numbers import (
    drops_no_imaginary_part,
    extremes_stay_finite,
    follows_its_reference,
    jit_changes_nothing,
    narrow_parameters_have_wide_slots,
    scalars_are_as_wide_as_the_leaves,
    turns_with_complex_numbers_or_refuses,
    vmaps_over_gradients,
)
from gradxform.testing.promises_places import (
    owns_its_buffers,
    runs_inside_optax_and_optax_inside,
    runs_on_explicit_meshes,
    sharded_equals_unsharded,
)
from gradxform.testing.promises_rows import touches_rows_or_refuses
from gradxform.testing.promises_slots import says_which_slots_are_copies, says_whose_its_states_are
from gradxform.testing.promises_traits import says_what_its_state_holds, says_what_its_updates_are

PROMISES: dict[str, Promise] = {
    promise.__name__: promise
    for promise in (
        follows_its_reference,
        state_is_a_scan_carry,
        jit_changes_nothing,
        vmaps_over_gradients,
        extremes_stay_finite,
        derivatives_are_finite,
        derivatives_equal_differences,
        narrow_parameters_have_wide_slots,
        scalars_are_as_wide_as_the_leaves,
        turns_with_complex_numbers_or_refuses,
        drops_no_imaginary_part,
        holes_pass,
        takes_abstract_parameters,
        takes_params_by_keyword,
        asks_for_params_by_name,
        leaks_no_traced_arrays,
        owns_its_buffers,
        looks_no_further_than_it_says,
        says_what_its_updates_are,
        says_what_its_state_holds,
        says_whose_its_states_are,
        says_which_slots_are_copies,
        says_where_its_steps_lead,
        copies_move_with_the_parameters,
        what_is_inside_knows_the_parameters,
        what_is_inside_is_told_of_moves,
        moves_are_known_on_both_sides,
        what_is_inside_takes_the_inner_steps,
        what_comes_after_takes_its_updates,
        a_nan_goes_no_further_than_a_guard,
        names_the_axes_that_it_needs,
        touches_rows_or_refuses,
        sharded_equals_unsharded,
        runs_on_explicit_meshes,
        runs_inside_optax_and_optax_inside,
        boxes_name_the_axes_of_their_slots,
        is_a_value,
        its_numbers_can_be_in_the_state,
        goes_to_json_and_back,
    )
}
