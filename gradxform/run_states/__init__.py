"""What the state of a run says, and that state for another optimizer or for Optax.

`metrics`, `learning_rate` and `slot_names` read a state; `migration` and `optax` carry it over.
"""
