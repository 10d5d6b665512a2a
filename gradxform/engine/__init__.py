"""How a rule for one array becomes an update of a tree.

Transforms, wrappers and distributed code use only the names below. The modules: `run` runs the
neighbouring rules of a chain together; `lift` maps them over all leaves; `one_leaf` applies them to
one; `matrices` lifts rules for whole matrices, `in_place` runs them on one after the other, `cuts`
says how arrays are divided over devices, `rounds` sums over whole arrays where devices have pieces,
and `renewal` spreads costly parts of rules over steps; `together` has arrays made in one pass;
`chunks` and `calls` decide which leaves share a compiled call and how it is compiled; `storage` and
`rows` load and store slots, whole or by touched rows; `sums` and `shards` sum over whole trees,
also over trees that are divided over devices or seen part by part.
"""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.engine.calls import compiled_calls as compiled_calls
    from gradxform.engine.chunks import devices as devices, leaf_signature as leaf_signature
    from gradxform.engine.cuts import (
        Cut as Cut,
        among_zeros as among_zeros,
        array_sum as array_sum,
        as_pieces as as_pieces,
        by_columns as by_columns,
        columns_now as columns_now,
        cut_anew as cut_anew,
        cut_at as cut_at,
        cuts_of as cuts_of,
        cuts_rows_only as cuts_rows_only,
        exchange_now as exchange_now,
        mean_over_pieces as mean_over_pieces,
        own_piece as own_piece,
        places_of as places_of,
        slot_dim as slot_dim,
        slot_piece as slot_piece,
        summing_over as summing_over,
        whole_shapes as whole_shapes,
        whole_slots as whole_slots,
    )
    from gradxform.engine.in_place import InPlace as InPlace, run_in_place as run_in_place
    from gradxform.engine.lift import (
        PerLeaf as PerLeaf,
        check_addable as check_addable,
        check_gradient as check_gradient,
        map_rows as map_rows,
    )
    from gradxform.engine.matrices import (
        Member as Member,
        grams_needed as grams_needed,
        joined as joined,
        map_matrices as map_matrices,
        parted as parted,
        rounded as rounded,
        view_of as view_of,
        widened as widened,
    )
    from gradxform.engine.renewal import (
        as_share as as_share,
        matrix_numbers as matrix_numbers,
        renewed as renewed,
    )
    from gradxform.engine.rounds import (
        array_max as array_max,
        array_sums as array_sums,
        cut_here as cut_here,
        over_pieces as over_pieces,
        whole_shape as whole_shape,
    )
    from gradxform.engine.rows import (
        ROWS_REMEDY as ROWS_REMEDY,
        merged_rows as merged_rows,
        put_rows as put_rows,
        reach_of as reach_of,
        refuse_rows as refuse_rows,
        take_rows as take_rows,
    )
    from gradxform.engine.run import (
        RulesAfter as RulesAfter,
        rules_after as rules_after,
        run_rules as run_rules,
    )
    from gradxform.engine.shards import (
        as_layers as as_layers,
        as_shards as as_shards,
        check_bound as check_bound,
        for_the_next_step as for_the_next_step,
        is_for_the_next_step as is_for_the_next_step,
        is_seen_in_parts as is_seen_in_parts,
        largest_of_parts as largest_of_parts,
        layer_axes as layer_axes,
        number_of_layers as number_of_layers,
        only_adds_up as only_adds_up,
        over_all_shards as over_all_shards,
        seen_here as seen_here,
        shard_axes as shard_axes,
        total_over_shards as total_over_shards,
        totals_over_parts as totals_over_parts,
        true_on_all_shards as true_on_all_shards,
    )
    from gradxform.engine.sums import (
        Columns as Columns,
        global_norm as global_norm,
        sum_of_squares as sum_of_squares,
        tree_sums as tree_sums,
    )
    from gradxform.engine.tiles import apply_stored as apply_stored, goes_by_tiles as goes_by_tiles
    from gradxform.engine.together import (
        made_with as made_with,
        read_again as read_again,
        sent_here as sent_here,
        with_slots as with_slots,
    )
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
