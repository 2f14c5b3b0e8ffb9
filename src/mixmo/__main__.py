"""The process `mixmo`, also `python -m mixmo`."""

from typing import NoReturn

from mixmo.utils.signals import stoppable


def command() -> NoReturn:
    """Run the process; Ctrl-C ends it with one line, also while it is still importing."""
    with stoppable():
        from mixmo.cli import app
    app.command()


if __name__ == "__main__":  # processes that are spawned import this file too
    command()
