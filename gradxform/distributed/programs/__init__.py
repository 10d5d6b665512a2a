"""The messages of a program between devices, and how much exchanges have sent so far."""
