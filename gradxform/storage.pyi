from gradxform.leaves.storage import *
