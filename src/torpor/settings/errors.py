"""What can be wrong with the settings."""


class SettingsError(Exception):
    """The settings cannot be used: it says what happened, what state things are in, what to do.

    ``problems`` has a sentence for each thing that is wrong.
    """

    def __init__(self, problems: list[str], todo: str) -> None:
        self.problems = tuple(problems)
        self.happened = " ".join(problems)
        self.state = "Nothing was started."
        self.todo = todo
        super().__init__(" ".join((self.happened, self.state, self.todo)))
