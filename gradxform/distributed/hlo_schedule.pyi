from gradxform.testing.hlo_schedule import *
