"""What runs around a freeze and a thaw besides the freezer: the network card is set up, disks are
mounted, and hooks run, at their moments."""

from typing import Any

from torpor.guest import network
from torpor.guest.disks import Disks
from torpor.guest.errors import describe
from torpor.guest.hooks import AFTER_THAW, FIRST, STAGES, Hooks, Result
from torpor.guest.inherited import destroy_inherited
from torpor.guest.link import Answer
from torpor.guest.rest import Rest, RestError, write_hostname


class Waking:
    """Wakes the machine, and runs hooks when the host asks."""

    def __init__(self, rest: Rest, hooks: Hooks, disks: Disks) -> None:
        self._rest = rest
        self._hooks = hooks
        self._disks = disks

    def wake(self, wanted: dict[str, Any], received_ns: int, answer: Answer) -> None:
        """Put right what a thaw must, mount disks, run the hooks that must be first, let the
        processes run.

        The network card is set up if ``wanted`` has ``card``: "again", or "another" in a machine
        that has become another one. The answer has ``no_card`` if it could not be: why.

        Disks are mounted if ``wanted`` has ``disks``: what :meth:`Disks.mount` wants. The answer
        has ``disks`` then, what that says of each. Hooks run if ``wanted`` has ``hooks``: what
        :meth:`Hooks.run` wants. The answer has ``hooks``, what became of them, if there were any,
        and ``after_thaw`` if there are hooks for ``hooks.run`` now.
        """
        said = self._rest.put_right(wanted, received_ns)
        if "again_ns" in said:
            answer(said)
            return
        if "card" in wanted:
            said |= _connect(wanted["card"])
        if "disks" not in wanted:
            self._go_on(wanted, said, answer)
            return

        def mounted(why_not: list[str | None]) -> None:
            try:
                self._go_on(wanted, said | {"disks": why_not}, answer)
            except OSError as error:  # called from the loop: nobody above would answer for us
                answer({"error": describe(error)})

        self._disks.mount(wanted["disks"], mounted)

    def _go_on(self, wanted: dict[str, Any], said: dict[str, Any], answer: Answer) -> None:
        """Run the hooks that must be first, and let the processes run."""
        found = self._hooks.find() if "hooks" in wanted else {}
        if AFTER_THAW in found:
            said["after_thaw"] = True

        def let_go(results: list[Result]) -> None:
            # Called from the loop: nobody above would answer for us.
            try:
                self._rest.resume(wanted)
                answer(said | {"hooks": results} if results else said)
            except (OSError, RestError) as error:
                answer({"error": describe(error)})
            if "hostname" in wanted:
                write_hostname(wanted["hostname"])

        if FIRST in found:
            self._hooks.run(FIRST, found[FIRST], wanted["hooks"], let_go)
        else:
            let_go([])

    def run_stage(self, wanted: dict[str, Any], _received_ns: int, answer: Answer) -> None:
        """Run the hooks of ``stage``; the answer comes when they have ended.

        Raises ValueError for a stage that there is not, OSError (EBUSY) while others run.
        """
        stage = wanted["stage"]
        if stage not in STAGES:
            raise ValueError(f"there is no stage {stage!r} for hooks; there are {STAGES}")
        hooks = self._hooks.find([stage]).get(stage, [])
        if not hooks:
            answer({"hooks": []})
            return
        self._hooks.run(
            stage, hooks, wanted.get("hooks") or {}, lambda results: answer({"hooks": results})
        )


def _connect(card: str) -> dict[str, Any]:
    """Set the network card up, and in "another" machine than the one that was frozen, do without
    that one's connections; return what is to be said of it. A machine whose card does not work is
    better than none."""
    try:
        if network.set_up() and card == "another":
            destroy_inherited()
    except OSError as error:
        return {"no_card": str(error)}
    return {}
