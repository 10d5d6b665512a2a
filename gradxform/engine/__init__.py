"""How a rule for one array becomes an update of a tree.

Transforms, wrappers and distributed code use only the names below. The modules: `run` runs the
neighbouring rules of a chain together; `lift` maps them over all leaves; `one_leaf` applies them
to one; `matrices` lifts rules for whole matrices; `renewal` spreads their costly parts over steps;
`chunks` and `calls` decide which leaves share a compiled call and how it is compiled; `storage` and
`rows` load and store slots, whole or by touched rows; `sums` and `shards` sum over whole trees,
also over trees that are divided over devices.
"""

from gradxform.engine.lift import PerLeaf as PerLeaf, map_rows as map_rows
from gradxform.engine.matrices import (
    Member as Member,
    map_matrices as map_matrices,
    view_of as view_of,
    widened as widened,
)
from gradxform.engine.renewal import renewed as renewed
from gradxform.engine.rows import (
    ROWS_REMEDY as ROWS_REMEDY,
    merged_rows as merged_rows,
    put_rows as put_rows,
    reach_of as reach_of,
    refuse_rows as refuse_rows,
    take_rows as take_rows,
)
from gradxform.engine.run import run_rules as run_rules
from gradxform.engine.shards import (
    as_shards as as_shards,
    over_all_shards as over_all_shards,
    true_on_all_shards as true_on_all_shards,
)
from gradxform.engine.sums import global_norm as global_norm, sum_of_squares as sum_of_squares
