"""How the search of the site ranks pages: those that explain come before those that list.

The search multiplies what it finds on a page by the page's boost, and what it finds in a heading by
a thousand.
"""

from collections.abc import Iterable

# By the first words of the path; the first that fits counts.
_BOOSTS = {
    "reference/index": 0.1,
    "reference/states": 0.001,  # a state has the name of its part
    "reference/compat": 0.02,
    "reference/contrib": 0.1,
    "reference/testing": 0.02,
    "reference/": 0.1,
    "optimizers.md": 0.3,  # the tables name everything that has a page
    "gallery": 0.3,
    "traits": 0.1,
    "architecture": 0.1,
    "race": 0.3,
    "differences": 0.5,
    "doors": 0.5,
    "guides/from_pytorch_optimizer": 0.5,
    "guides/from_bitsandbytes": 0.6,  # pages of two columns name what others explain
    "guides/from_deepspeed": 0.3,
    "guides/from_keras": 0.3,
    "guides/compositions": 0.7,
    "guides/through_steps": 1.0,  # "different" is the beginning of its title
    "guides/": 2.0,
    "curvature": 2.0,
    "line_search": 2.0,
    "metrics": 2.0,
    "sparse": 1.6,  # "gradients" is in its title, and in most questions
    "wrappers.md": 3.0,
    "wrappers/schedule_free": 2.0,  # "free" is the beginning of "freeze"
}


def boost(path: str, names: Iterable[str]) -> float:
    """Return the boost of a page.

    The search takes a word for the beginning of longer ones, and rarer ones count for more: of the
    parts whose names begin with `adam`, it would list `adam` last. So `adam` comes forward, and the
    others stand back.

    Args:
      path: the page, from the folder docs.
      names: of all optimizers.
    """
    for begin, number in _BOOSTS.items():
        if path.startswith(begin):
            return number
    folder, _, name = path.removesuffix(".md").partition("/")
    if not name or folder != "optimizers":
        return 1.0
    shorter = sum(name.startswith(other) for other in names if other != name)
    longer = any(other.startswith(name) for other in names if other != name)
    return 3.0 ** (longer - shorter)
