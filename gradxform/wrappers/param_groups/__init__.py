"""Groups of parameters with options or optimizers of their own."""
