"""Points from several files: CSVs of the shared columns, and results of load generators."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from objectives.validation.bench_results import read_results
from objectives.validation.points import PointsFile, read_points
from spaces.documents import read_text
from spaces.errors import InputError
from spaces.plan import DeploymentPlan


def read_files(
    paths: Sequence[Path], grades: Sequence[str], plan: DeploymentPlan | None = None
) -> PointsFile:
    """The points of all files together; `plan` is what results in JSON were measured on.

    A file that begins with a brace or bracket is a result, any other a CSV. The fingerprint of
    several files is that of their fingerprints.
    """
    files = [_read(path, grades, plan) for path in paths]
    if len(files) == 1:
        return files[0]
    unread: Counter[str] = Counter()
    for file in files:
        unread.update(file.unread)
    joined = "".join(file.sha256 for file in files)
    return PointsFile(
        name=", ".join(file.name for file in files),
        sha256=hashlib.sha256(joined.encode()).hexdigest(),
        rows=sum(file.rows for file in files),
        of_grade=sum(file.of_grade for file in files),
        points=tuple(point for file in files for point in file.points),
        unread=dict(unread),
    )


def _read(path: Path, grades: Sequence[str], plan: DeploymentPlan | None) -> PointsFile:
    if not read_text(path).lstrip().startswith(("{", "[")):
        return read_points(path, grades)
    if plan is None:
        raise InputError(
            "a load generator's result does not say what was deployed",
            where=str(path),
            remedy="name the deployment with --plan PLAN.yaml",
        )
    points = tuple(read_results(path, plan))
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return PointsFile(path.name, sha256, len(points), len(points), points, {})
