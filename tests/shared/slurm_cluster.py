"""Fake SLURM commands, for tests of the scripts of jobs."""

import dataclasses
import os
import subprocess
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Fake SLURM commands, which record their arguments and run a given line of bash."""

    folder: Path

    def answers(self, command: str, answer: str) -> None:
        (self.folder / "bin").mkdir(exist_ok=True)
        path, called = self.folder / "bin" / command, self.folder / f"{command}.called"
        path.write_text(f"#!/bin/bash\nprintf '%s\\0' \"$@\" >'{called}'\n{answer}\n")
        path.chmod(0o755)

    def called(self, command: str) -> list[str]:
        """Returns the arguments of the last call, [] if there was none."""
        called = self.folder / f"{command}.called"
        return called.read_text().split("\0")[:-1] if called.exists() else []

    def forget(self, command: str) -> None:
        (self.folder / f"{command}.called").unlink(missing_ok=True)

    def run(
        self, text: str, code: int = 0, element: int = 0, restarts: str = "", job: str = ""
    ) -> int:
        """Returns the exit code of a script in which srun runs a line of bash, and exits with a given code."""
        self.answers("srun", f"{job}\nexit {code}")
        self.answers("scontrol", "exit 0")
        path = self.folder / "script"
        path.write_text(text)
        subprocess.run(["bash", "-n", str(path)], check=True)
        environment = {"SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": str(element)}
        environment |= {"SLURM_JOB_ID": "21"} | (
            {"SLURM_RESTART_COUNT": restarts} if restarts else {}
        )
        return subprocess.run(
            ["/bin/bash", str(path)], env={**os.environ, **environment}
        ).returncode
