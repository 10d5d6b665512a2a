"""Starting processes on the workers of a cluster of Ray that end together."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray_cluster
from command_line import Refused
from distributed_launch import Died, start_process, why

LOOK = 0.2  # seconds between two looks at the processes
PATIENCE = 300.0  # seconds for whatever Ray starts


class Starter:
    """An actor of Ray that starts one of the processes on its machine, and reads what it says."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="distributed_digits-"))
        self.process: subprocess.Popen[bytes] | None = None

    def address(self) -> str:
        """Return a free address of this machine."""
        import ray

        host = ray.util.get_node_ip_address()
        with socket.create_server((host, 0)) as free:
            return f"{host}:{free.getsockname()[1]}"

    def start(self, command: Sequence[str], folder: str) -> None:
        """Start the process in a folder."""
        os.chdir(folder)
        out, log = self.folder / "out.txt", self.folder / "log.txt"
        self.process = start_process([sys.executable, *command], log, out)

    def look(self, offset: int) -> tuple[bytes, int | None, list[str]]:
        """Return what it has printed from an offset on, its exit code, and its messages."""
        assert self.process is not None
        code = self.process.poll()  # first, so that all that it printed is there
        with open(self.folder / "out.txt", "rb") as out:
            out.seek(offset)
            printed = out.read()
        text = (self.folder / "log.txt").read_text("utf-8", "replace") if code else ""
        return printed, code, text.splitlines()

    def end(self) -> None:
        """Kill the process; keep what it said only if it failed."""
        if self.process is not None:
            failed = self.process.poll()
            self.process.kill()
            self.process.wait()
            if not failed:
                shutil.rmtree(self.folder)


def launch_on_ray(
    script: str,
    argv: Sequence[str],
    processes: int,
    timeout: float | None,
    name: str,
    address: str | None,
) -> None:
    """Run processes of a script on a cluster of Ray until they end; kill all when one fails.

    Every machine of the cluster must have the script and the current folder at the same places.

    Args:
      script: the path of the script.
      argv: its arguments, to which the number of the process and the coordinator's address are
        added.
      processes: the number of processes.
      timeout: seconds after which all are killed.
      name: the beginning of the line that says why a process gives up.
      address: the address of the cluster; None to start one on this machine.

    Raises:
      Refused: if there is no such cluster, or it has no room.
      Said: if a process gave up with a message.
      Died: if a process ended in any other way, or all took too long.
    """
    ray = ray_cluster.start(processes, address)
    starters: list[Any] = []
    try:
        kind = ray.remote(Starter).options(num_cpus=1)
        starters += [kind.remote() for _ in range(processes)]
        coordinator = ray.get(starters[0].address.remote(), timeout=PATIENCE)
        argv = [*argv, "--processes", str(processes), "--coordinator", coordinator]
        script = os.path.abspath(script)
        calls = [
            starter.start.remote([script, *argv, "--process-id", str(i)], os.getcwd())
            for i, starter in enumerate(starters)
        ]
        ray.get(calls, timeout=PATIENCE)
        _watch(ray, starters, timeout, name)
    except ray.exceptions.GetTimeoutError as error:
        raise Refused(
            f"the cluster did not start {processes} processes in {PATIENCE:g} s; it needs as many "
            "free CPUs (`ray status`)."
        ) from error
    except ray.exceptions.RayActorError as error:
        raise Died("a worker of Ray is gone, and its process with it.") from error
    finally:
        for starter in starters:
            ray.wait([starter.end.remote()], timeout=5)
            ray.kill(starter)
        ray.shutdown()


def _watch(ray: Any, starters: Sequence[Any], timeout: float | None, name: str) -> None:
    """Print what the first process prints, until all end with exit code 0."""
    deadline = time.monotonic() + (timeout or float("inf"))
    offset = 0
    while True:
        calls = [one.look.remote(0 if i else offset) for i, one in enumerate(starters)]
        found = ray.get(calls, timeout=PATIENCE)
        printed = found[0][0]
        offset += len(printed)
        sys.stdout.write(printed.decode("utf-8", "replace"))
        sys.stdout.flush()
        failures = [
            why(f"process {i} of {len(found)}", code, lines, name)
            for i, (_, code, lines) in enumerate(found)
            if code
        ]
        if failures:
            raise min(failures, key=lambda failure: failure[0])[1]
        if all(code == 0 for _, code, _ in found):
            return
        if time.monotonic() > deadline:
            raise Died(f"not done after {timeout:g} s; killed the {len(found)} processes.")
        time.sleep(LOOK)
