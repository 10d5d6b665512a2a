"""All that depends on JAX: differences between its versions, and programs as jaxprs.

Everything above may import it; it imports `types` only.
"""
