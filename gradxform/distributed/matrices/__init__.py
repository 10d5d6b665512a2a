"""Matrices that devices divide: which device works on what, and how pieces come together."""
