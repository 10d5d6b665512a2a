"""Tables for people: the parts of an optimizer, its groups, its bytes."""
