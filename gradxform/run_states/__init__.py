"""The state of a run: read by names, and carried over to another optimizer or to Optax.

`metrics`, `learning_rate` and `slot_names` read a state; `migration` and `optax` carry it over.
"""
