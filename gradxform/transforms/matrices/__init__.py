"""Matrices in arrays, for rules of matrices: which axes are rows and columns, and their pieces."""
