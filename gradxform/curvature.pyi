from gradxform.linalg.curvature import *
