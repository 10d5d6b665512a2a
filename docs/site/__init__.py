"""The site of the documentation: its navigation, generated pages, pictures and checks."""
