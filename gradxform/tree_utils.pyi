from gradxform.tree.tree_utils import *
