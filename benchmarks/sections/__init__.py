"""The sections: a module with a `SECTION` each; `names.py` has them by name."""
