"""The promises of the library, as functions to try on any transform.

    from gradxform import testing

    print(testing.check(my_transform(0.9), testing.Reference(start, step)))
    testing.check(my_transform(0.9)).raise_if_broken()  # as a test

or, one test for each promise:

    @pytest.mark.parametrize("promise", testing.PROMISES)
    def test_keeps(promise):
        testing.PROMISES[promise](testing.Case(my_transform(0.9)))
"""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.testing.case import (
        Case as Case,
        example_params as example_params,
        random_gradients as random_gradients,
    )
    from gradxform.testing.promise import Broken as Broken, Promise as Promise, Skipped as Skipped
    from gradxform.testing.promises import PROMISES as PROMISES
    from gradxform.testing.promises_boxes import (
        boxes_name_the_axes_of_their_slots as boxes_name_the_axes_of_their_slots,
    )
    from gradxform.testing.promises_derivatives import (
        derivatives_are_finite as derivatives_are_finite,
        derivatives_equal_differences as derivatives_equal_differences,
    )
    from gradxform.testing.promises_exchanges import (
        names_the_axes_that_it_needs as names_the_axes_that_it_needs,
    )
    from gradxform.testing.promises_form import (
        asks_for_params_by_name as asks_for_params_by_name,
        goes_to_json_and_back as goes_to_json_and_back,
        holes_pass as holes_pass,
        is_a_value as is_a_value,
        its_numbers_can_be_in_the_state as its_numbers_can_be_in_the_state,
        leaks_no_traced_arrays as leaks_no_traced_arrays,
        state_is_a_scan_carry as state_is_a_scan_carry,
        takes_abstract_parameters as takes_abstract_parameters,
        takes_params_by_keyword as takes_params_by_keyword,
    )
    from gradxform.testing.promises_inside import (
        a_nan_goes_no_further_than_a_guard as a_nan_goes_no_further_than_a_guard,
        moves_are_known_on_both_sides as moves_are_known_on_both_sides,
        what_is_inside_is_told_of_moves as what_is_inside_is_told_of_moves,
        what_is_inside_knows_the_parameters as what_is_inside_knows_the_parameters,
    )
    from gradxform.testing.promises_locality import (
        looks_no_further_than_it_says as looks_no_further_than_it_says,
    )
    from gradxform.testing.promises_measures import (
        what_comes_after_takes_its_updates as what_comes_after_takes_its_updates,
        what_is_inside_takes_the_inner_steps as what_is_inside_takes_the_inner_steps,
    )
    from gradxform.testing.promises_moves import (
        copies_move_with_the_parameters as copies_move_with_the_parameters,
        says_where_its_steps_lead as says_where_its_steps_lead,
    )
    from gradxform.testing.promises_numbers import (
        drops_no_imaginary_part as drops_no_imaginary_part,
        extremes_stay_finite as extremes_stay_finite,
        follows_its_reference as follows_its_reference,
        jit_changes_nothing as jit_changes_nothing,
        narrow_parameters_have_wide_slots as narrow_parameters_have_wide_slots,
        scalars_are_as_wide_as_the_leaves as scalars_are_as_wide_as_the_leaves,
        turns_with_complex_numbers_or_refuses as turns_with_complex_numbers_or_refuses,
        vmaps_over_gradients as vmaps_over_gradients,
    )
    from gradxform.testing.promises_places import (
        owns_its_buffers as owns_its_buffers,
        runs_inside_optax_and_optax_inside as runs_inside_optax_and_optax_inside,
        runs_on_explicit_meshes as runs_on_explicit_meshes,
        sharded_equals_unsharded as sharded_equals_unsharded,
    )
    from gradxform.testing.promises_rows import touches_rows_or_refuses as touches_rows_or_refuses
    from gradxform.testing.promises_slots import (
        says_which_slots_are_copies as says_which_slots_are_copies,
        says_whose_its_states_are as says_whose_its_states_are,
    )
    from gradxform.testing.promises_traits import (
        says_what_its_state_holds as says_what_its_state_holds,
        says_what_its_updates_are as says_what_its_updates_are,
    )
    from gradxform.testing.references import (
        Reference as Reference,
        TreeReference as TreeReference,
        as_tree as as_tree,
        only as only,
        sequence as sequence,
        stateless as stateless,
        zeros as zeros,
    )
    from gradxform.testing.report import (
        BrokenPromises as BrokenPromises,
        Finding as Finding,
        Report as Report,
        check as check,
    )
    from gradxform.testing.storages import (
        Outliers as Outliers,
        StorageFinding as StorageFinding,
        StorageReport as StorageReport,
        check_storage as check_storage,
        storages_of as storages_of,
    )
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
