"""Spark's progress on a terminal: finished tasks of all known ones, from its status tracker."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, final

import click

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_S: Final = 0.2
# The bar's length: Spark discovers stages as it goes, so the total grows, and the bar never moves back.
PARTS: Final = 1000
DONE: Final = "SUCCEEDED"


@final
class Stages:
    """Tasks of all Spark jobs of one group of jobs."""

    def __init__(self, tracker: Any, group: str) -> None:
        self.tracker = tracker
        self.group = group
        self.stages = 0
        self.stages_done = 0
        self.tasks = 0
        self.tasks_done = 0

    def look(self) -> None:
        stages = stages_done = tasks = tasks_done = 0
        for job_id in self.tracker.getJobIdsForGroup(self.group):
            job = self.tracker.getJobInfo(job_id)
            if job is None:
                continue
            for stage_id in job.stageIds:
                stage = self.tracker.getStageInfo(stage_id)
                if stage is None:
                    continue
                # Tasks of a finished job that did not run had results from an earlier one.
                done = stage.numTasks if job.status == DONE else stage.numCompletedTasks
                stages += 1
                stages_done += done == stage.numTasks
                tasks += stage.numTasks
                tasks_done += done
        self.stages, self.stages_done, self.tasks, self.tasks_done = stages, stages_done, tasks, tasks_done

    def text(self) -> str:
        return f"stage {min(self.stages_done + 1, self.stages)}/{self.stages}, task {self.tasks_done}/{self.tasks}"


@contextmanager
def watch(spark: SparkSession, label: str, is_json: bool) -> Iterator[None]:
    """Shows a bar while Spark works in this thread, if stderr is a terminal and the output is for people."""
    if is_json or not sys.stderr.isatty():
        yield
        return
    context = spark.sparkContext
    group = f"kcoord {label}"
    context.setJobGroup(group, label)
    stages = Stages(context.statusTracker(), group)
    over = threading.Event()
    bar: Any = click.progressbar(
        length=PARTS, label=label, file=sys.stderr, item_show_func=lambda text: text, show_eta=False
    )
    with bar:
        watcher = threading.Thread(target=_follow, args=(stages, bar, over), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
            context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
        bar.update(PARTS - bar.pos, "done")


def _follow(stages: Stages, bar: Any, over: threading.Event) -> None:
    while not over.wait(POLL_S):
        try:
            stages.look()
        except Exception:
            # The work itself raises the error to its caller; the bar ignores it.
            return
        if stages.tasks:
            part = PARTS * stages.tasks_done // stages.tasks
            # The bar is complete when the work is over, not when the last known task is.
            bar.update(max(min(part, PARTS - 1) - bar.pos, 0), stages.text())
