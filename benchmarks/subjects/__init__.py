"""What is measured: parameter trees, optimizers of both libraries, and functions to search on."""
