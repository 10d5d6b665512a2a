"""What a program sends between devices, and what exchanges have sent so far."""
