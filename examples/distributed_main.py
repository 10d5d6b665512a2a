"""Running one of several processes of an example, and ending with one line where it fails."""

import argparse
import os
import shlex
import sys
import traceback
from collections.abc import Callable

from command_line import Refused, one_line
from digits_run import Run
from distributed_launch import Died, Said
from train_digits import Diverged


def as_one_of_several(example: str, work: Callable[[], None]) -> int:
    """Do the work of a process that trains with others; return 0, or end the process if it fails.

    Args:
      example: the name of the example's file.
      work: trains.
    """
    try:
        work()
        return 0
    except (Refused, Diverged, OSError) as error:
        code = _fail(example, error)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a normal exit would wait for the others, which wait for this process


def exit_code(
    example: str,
    parse: Callable[[], argparse.Namespace],
    work: Callable[[argparse.Namespace], int],
    unit: str,
) -> int:
    """Run an example; return its exit code, after one line on stderr if it ends early.

    Args:
      example: the name of its file.
      parse: reads the command line, whose `out` is the directory of the run.
      work: does what it says, and returns the exit code.
      unit: what the checkpoints are numbered by.
    """
    args = None
    try:
        args = parse()
        return work(args)
    except Said as error:
        print(error.args[0], file=sys.stderr)
        return error.args[1]
    except (Refused, Diverged, Died, OSError) as error:
        return _fail(example, error)
    except KeyboardInterrupt:
        go_on = f"no {unit} was saved."
        if args and (done := Run(args.out).epochs_done()):
            command = f"python examples/{example} --resume --out {shlex.quote(str(args.out))}"
            go_on = f"{unit} {done} is saved; go on with: {command}"
        print(f"{example}: interrupted; {go_on}", file=sys.stderr)
        return 130


def _fail(example: str, error: Exception) -> int:
    """Print the error on one line; return the exit code."""
    print(f"{example}: error: {one_line(error)}", file=sys.stderr)
    return 1 if isinstance(error, Diverged | Died) else 2
