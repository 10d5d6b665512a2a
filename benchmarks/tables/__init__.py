"""What is shown of the measured figures: their names, tables, pictures and targets."""
