from gradxform.leaves.masks import *
