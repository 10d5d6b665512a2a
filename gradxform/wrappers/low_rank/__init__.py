"""Rules on projections of low rank: GaLore."""
