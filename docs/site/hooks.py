"""What MkDocs calls while it builds the site; see mkdocs.yml."""
