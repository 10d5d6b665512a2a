"""What references are made of: the library's own, under the names that the rules here use."""

from gradxform.testing import (
    Reference as Reference,
    TreeReference as TreeReference,
    as_tree as as_tree,
    only as only,
    sequence as sequence,
    stateless as stateless,
    zeros as zeros,
)
