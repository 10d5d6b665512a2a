"""The tables of the guides for users of PyTorch: the call there, the call here, the difference.

`python -m docs.site.from_pytorch.tables` writes them anew. Each row is a test.
"""
