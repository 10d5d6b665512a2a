from gradxform.projections.polytopes import *
