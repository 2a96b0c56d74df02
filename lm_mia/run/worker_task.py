"""What a command asks of a worker process, and what the worker reports."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from lm_mia.config import Config
from lm_mia.data.subsets import ModelSeeds
from lm_mia.events import Event
from lm_mia.run.stages import ModelVerb

Report = Callable[[Event], None]


@dataclasses.dataclass(frozen=True)
class WorkerTask:
    """What a worker process does: the recipe, and the models of it that are trained and scored."""

    verb: ModelVerb
    """Whether to train models, score them, or both ("run")."""
    config: Config
    population_dir: Path
    """Folder of the samples."""
    recipe_dir: Path
    selected_models: Sequence[ModelSeeds] | None = None
    """The models to make, except those that are locked by another process. None: all models; the worker waits for those
    that are locked."""
    worker_index: int = 0
    """Index of this worker among those of the command."""
    num_workers: int = 1
    """Number of workers of the command."""
    devices_per_model: int = 1
    """Number of devices that make one model together; 0: all devices of the job."""
