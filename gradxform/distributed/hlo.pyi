from gradxform.testing.hlo import *
