"""The terminal as Rich draws on it."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from torpor.cli.harmless import harmless


class Screen(Console):
    """A console on which text is text: Rich lets escape sequences that are in it pass."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Return what is to be drawn; Rich's own control sequences are kept apart from text."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else harmless(segment.text)
            yield segment if text == segment.text else Segment(text, segment.style)
