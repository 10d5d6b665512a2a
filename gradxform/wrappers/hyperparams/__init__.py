"""Hyperparameters in the state, where they can be read and set."""
