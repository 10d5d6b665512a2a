"""What depends on JAX: what differs between its versions, and programs as jaxprs.

Everything above may import it; it imports `types` only.
"""
