"""Where tables are printed."""

from rich.console import Console


class Output(Console):
    """Standard output, at least so many characters wide. Brackets in a name are no markup."""

    def __init__(self, least: int) -> None:
        super().__init__(width=max(least, Console().width), highlight=False, markup=False)

    def on_broken_pipe(self) -> None:
        """The reader has seen enough, which is no error; rich would exit with one."""
        raise BrokenPipeError
