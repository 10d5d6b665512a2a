from gradxform.run_states.metrics import *
