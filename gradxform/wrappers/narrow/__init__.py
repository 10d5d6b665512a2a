"""Parameters of 16 bits or fewer: wider copies, and what rounding takes."""
