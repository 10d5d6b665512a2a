"""Starting processes on this machine that end together."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

THREADS = "PJRT_NPROC"  # how many threads XLA has
COUNT = "--xla_force_host_platform_device_count="


class Died(Exception):
    """A process ended early, or all took too long."""


class Said(Exception):
    """A process refused or gave up with a message: the message, and the exit code."""


def launch(
    script: str,
    argv: Sequence[str],
    processes: int,
    timeout: float | None,
    name: str,
    devices: int = 1,
) -> None:
    """Run processes of a script on this machine until they end; kill all when one fails.

    Args:
      script: the path of the script.
      argv: its arguments, to which the number of the process and the coordinator's address are
        added.
      processes: the number of processes.
      timeout: seconds after which all are killed.
      name: the beginning of the line that says why a process gives up.
      devices: the devices of each process.

    Raises:
      Said: if a process gave up with a message.
      Died: if a process ended in any other way, or all took too long.
    """
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of the `finally`
    logs = Path(tempfile.mkdtemp(prefix=f"{Path(script).stem}-"))
    started: list[subprocess.Popen[bytes]] = []
    try:
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        argv = [*argv, "--processes", str(processes), "--coordinator", address]
        for i in range(processes):
            command = [sys.executable, script, *argv, "--process-id", str(i)]
            log = logs / f"{i}.txt"
            started.append(start_process(command, log, None if i == 0 else log, devices))
        _watch(started, timeout, logs, name)
    except Died as error:  # keep the logs
        raise Died(f"{error} What they said is in {logs}/.") from error
    except BaseException:
        shutil.rmtree(logs)
        raise
    else:
        shutil.rmtree(logs)
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()
            if process.stdin:
                process.stdin.close()
        signal.signal(signal.SIGTERM, before)


def start_process(
    command: list[str], log: Path, out: Path | None, devices: int = 1
) -> subprocess.Popen[bytes]:
    """Start a process whose devices are CPUs.

    Args:
      command: what to run.
      log: the file for its messages.
      out: the file for what it prints, which may be the same; None if this process prints it.
      devices: the number of its devices.
    """
    with contextlib.ExitStack() as files:
        messages = files.enter_context(log.open("wb"))
        printed = messages if out == log else out and files.enter_context(out.open("wb"))
        return subprocess.Popen(
            command,
            env=environment(devices),
            stdin=subprocess.PIPE,  # closed when this process ends in any way
            stdout=printed,
            stderr=messages,
            start_new_session=True,  # Ctrl-C reaches this process only
        )


def environment(devices: int) -> dict[str, str]:
    """Return the environment of a process with so many devices, which are CPUs."""
    flags = re.sub(rf"{COUNT}\d+", "", os.environ.get("XLA_FLAGS", ""))
    env = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    if devices > 1:
        flags += f" {COUNT}{devices}"
        env = {THREADS: threads_for(devices)} | env
    return env | {"JAX_PLATFORMS": "cpu"} | ({"XLA_FLAGS": flags.strip()} if flags.strip() else {})


def threads_for(devices: int) -> str:
    """Return how many threads XLA needs for several CPU devices in one process, at most.

    It runs independent exchanges of a program at once, and each waits for the other devices in a
    thread. With as many threads as devices, a program may wait for ever.
    """
    return str(max(8 * devices, os.cpu_count() or 1))


@contextlib.contextmanager
def threads_for_devices_here(used: int) -> Iterator[None]:
    """Give XLA the threads for the CPU devices of this process, which are made inside.

    Args:
      used: how many devices are to be used; there may be fewer.
    """
    told = re.search(rf"{COUNT}(\d+)", os.environ.get("XLA_FLAGS", ""))
    there = int(told[1] if told else os.environ.get("JAX_NUM_CPU_DEVICES", 1))
    if THREADS in os.environ:
        yield
        return
    os.environ[THREADS] = threads_for(min(used, there))
    try:
        yield
    finally:  # the processes that this one starts have other devices
        os.environ.pop(THREADS)


def _watch(
    started: list[subprocess.Popen[bytes]], timeout: float | None, logs: Path, name: str
) -> None:
    """Wait until all processes end with exit code 0."""
    deadline = time.monotonic() + (timeout or float("inf"))
    while True:
        codes = [process.poll() for process in started]
        if codes == [0] * len(codes):
            return
        failures = []
        for i, code in enumerate(codes):
            if code:
                lines = (logs / f"{i}.txt").read_text("utf-8", "replace").splitlines()
                failures.append(why(f"process {i} of {len(codes)}", code, lines, name))
        if failures:
            raise min(failures, key=lambda failure: failure[0])[1]
        if time.monotonic() > deadline:
            raise Died(f"not done after {timeout:g} s; killed the {len(codes)} processes.")
        time.sleep(0.02)


def why(who: str, code: int, lines: list[str], name: str) -> tuple[int, Exception]:
    """Return a rank and the error of a process; the lowest rank is most likely the cause."""
    messages = [line for line in lines if line.startswith(name)]
    if code > 0 and messages:
        return 0, Said(messages[-1], code)
    if code < 0:  # JAX aborts processes that lose a peer
        rank = 3 if -code == signal.SIGABRT else 1
        return rank, Died(f"{who} was killed by {signal.Signals(-code).name}.")
    errors = [line.strip() for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    how = ". ".join([f"{who} ended with exit code {code}", *errors[-1:]])
    return 2, Died(how.rstrip(".") + ".")


def end_with_parent() -> None:
    """Wait, in a process that `launch` started, until its parent ends; then end too."""
    while os.read(0, 1):  # until the other end of the pipe is closed
        pass
    os._exit(1)
