"""Where each name is, and loading it when somebody asks for it.

`table` has all public names, and `optax` what is looked up in the installed Optax.
Every package may import `lazy`.
"""
