"""Pictures of schedules, of optimizers at work, of states and of runs, drawn with matplotlib.

Each drawing function returns a matplotlib `Figure`: a notebook shows it, and
`figure.savefig("x.png")` writes it. No window is opened, and pyplot is not used. The extra
`plot` installs matplotlib, which is imported when you draw.
"""

from gradxform.plot.curves import schedule
from gradxform.plot.descent import Path, descend, paths
from gradxform.plot.history import training
from gradxform.plot.memory import state_memory
from gradxform.plot.surfaces import SURFACES, Surface

__all__ = [
    "SURFACES",
    "Path",
    "Surface",
    "descend",
    "paths",
    "schedule",
    "state_memory",
    "training",
]
