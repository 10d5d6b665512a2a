"""Pictures of schedules, of optimizers at work, of states and of runs, drawn with matplotlib.

Each drawing function returns a matplotlib `Figure`: a notebook shows it, and
`figure.savefig("x.png")` writes it. No window is opened, and pyplot is not used. The extra
`plot` installs matplotlib, which is imported when you draw.
"""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.plot.curves import schedule as schedule
    from gradxform.plot.descent import Path as Path, descend as descend, paths as paths
    from gradxform.plot.history import training as training
    from gradxform.plot.memory import state_memory as state_memory
    from gradxform.plot.surfaces import SURFACES as SURFACES, Surface as Surface
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
