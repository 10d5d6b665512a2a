"""How a state keeps its slots."""
