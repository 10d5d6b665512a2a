"""How the arrays of a state are sharded, from how the parameters are."""
