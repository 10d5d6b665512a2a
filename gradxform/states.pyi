from gradxform.leaves.states import *
