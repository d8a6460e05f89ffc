"""The list of watchers."""

from distillery.training.run import PreviewPaths, Run
from distillery.training.state import TrainingState
from distillery.training.watchers import Watcher
from distillery.training.watchers.held_out import HeldOut
from distillery.training.watchers.history import History
from distillery.training.watchers.previews import LivePreviews
from distillery.training.watchers.tensorboard import Curves
from distillery.training.watchers.variation import AlarmWatcher


def watchers_of(state: TrainingState, run: Run, paths: PreviewPaths | None) -> list[Watcher]:
    """Of a training where it begins or resumes. Alarms and curves are rank 0's.

    The history's row has the held-out loss, alarms judge the row, and curves show all of them.
    """
    previews = LivePreviews(state, run, paths)
    rows: list[Watcher] = [HeldOut(state, run), History(state, run)]
    if not run.ranks.is_main:
        return [*rows, previews]
    return [*rows, AlarmWatcher(state, run), previews, Curves(state, run, previews)]
