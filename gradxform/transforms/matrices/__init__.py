"""What rules of matrices share: which axes are rows and columns, and their pieces."""
