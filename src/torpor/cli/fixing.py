"""``torpor doctor --fix``: each change shown, asked for, made, and told."""

import shutil
import sys

import typer

from torpor.cli.facts import SEARCH, Facts
from torpor.cli.fixes import PROGRAMS, Fix, apply, plan


def put_right(facts: Facts, *, ask: bool) -> bool:
    """Make what changes can be made; say whether one was. All of it goes to standard error."""
    programs = frozenset(name for name in PROGRAMS if shutil.which(name, path=SEARCH))
    found = plan(facts, programs, sys.argv[0])
    if not found.fixes and not found.left:
        _say("There is nothing that can be put right from here.")
    changed = False
    for fix in found.fixes:
        _show(fix)
        if ask and not typer.confirm("Do this?", default=False, err=True):
            _say("Left as it is.")
            continue
        why = apply(fix)
        _say(f"It could not be done: {why}" if why else f"Done. {fix.afterwards}".rstrip())
        changed = True
    for each in found.left:
        _say(f"Cannot be done from here: {each}")
    return changed


def _show(fix: Fix) -> None:
    _say(f"\n{fix.what}:")
    if fix.file is not None:
        _say(f"  write {fix.file}:")
        for line in fix.content.splitlines():
            _say(f"    {line}")
    for command in fix.commands:
        _say(f"  run: {' '.join(command)}")


def _say(text: str) -> None:
    typer.echo(text, err=True)
