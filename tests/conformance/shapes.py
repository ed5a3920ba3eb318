"""What the descriptions of generated methods say of their answers, and how an answer differs."""

import ast
import inspect
import re
from typing import Any

_SUCCESS = re.compile(r"# response body for status code\(s\): ([\d, ]+)\n")


def described(method: Any) -> ast.expr | None:
    """Return what the description of a method says of its answer, if it says something.

    It is an example as text: a line for each key, its value the example of its type, and after it
    a comment, which goes on on lines that are indented by two more than what they belong to.
    """
    text = inspect.cleandoc(method.__doc__ or "")
    for found in _SUCCESS.finditer(text):
        if found[1].startswith("2"):
            return _example(text[found.end() :])
    return None


def _example(text: str) -> ast.expr:
    lines = text.splitlines()
    start = len(lines[0]) - len(lines[0].lstrip())
    kept = []
    for line in lines:
        indent = len(line) - len(line.lstrip()) - start
        if indent == 0 and kept and not line.strip().startswith(("}", "]")):
            break
        if indent % 4 == 0:
            kept.append(re.sub(r"\s+#.*", "", line.strip()))
    return ast.parse("\n".join(kept).replace("response == ", "", 1), mode="eval").body


def differences(answer: Any, shape: ast.expr, at: str = "") -> list[str]:
    """Return in what an answer has another JSON type than is described.

    Keys that are not described are Torpor's own, and no difference.
    """
    if isinstance(shape, ast.Dict):
        return _of_mapping(answer, shape, at)
    if isinstance(shape, ast.List):
        if not isinstance(answer, list):
            return [_said(at, "an array", answer)]
        element = shape.elts[0]
        return [each for one in answer for each in differences(one, element, f"{at}[]")]
    wanted, types = _scalar(shape)
    right = isinstance(answer, types) and (wanted == "a boolean" or not isinstance(answer, bool))
    return [] if right else [_said(at, wanted, answer)]


def missing(answer: Any, shape: ast.expr, at: str = "") -> set[str]:
    """Return the described keys that an answer does not have; of an array, none of its elements."""
    if isinstance(shape, ast.List):
        each = [missing(one, shape.elts[0], at) for one in answer]
        return set.intersection(*each) if each else {f"{at}[]"}
    if not isinstance(shape, ast.Dict):
        return set()
    found: set[str] = set()
    for key, value in _keys(shape).items():
        path = f"{at}.{key}" if at else key
        found |= missing(answer[key], value, path) if key in answer else {path}
    return found


def _keys(shape: ast.Dict) -> dict[str, ast.expr]:
    """Return what keys are described; none, of an object whose keys are anybody's."""
    pairs = zip(shape.keys, shape.values, strict=True)
    found = {ast.literal_eval(key): value for key, value in pairs if key}
    return {} if list(found) == ["str"] else found


def _of_mapping(answer: Any, shape: ast.Dict, at: str) -> list[str]:
    if not isinstance(answer, dict):
        return [_said(at, "an object", answer)]
    if [ast.unparse(key) for key in shape.keys if key] == ["'str'"]:
        of_any = shape.values[0]
        return [each for key in answer for each in differences(answer[key], of_any, at)]
    of_key = _keys(shape)
    if not of_key:
        return []
    known = [key for key in answer if key in of_key]
    if not known:
        return [f"`{at or 'the answer'}` has none of the keys that it has there"]
    begin = f"{at}." if at else ""
    return [
        each for key in known for each in differences(answer[key], of_key[key], begin + key)
    ]  # fmt: skip


def _scalar(shape: ast.expr) -> tuple[str, tuple[type, ...]]:
    if isinstance(shape, ast.Name):
        return {"bool": ("a boolean", (bool,))}[shape.id]
    assert isinstance(shape, ast.Constant), ast.dump(shape)
    if isinstance(shape.value, bool):
        return "a boolean", (bool,)
    if isinstance(shape.value, int):
        return "a whole number", (int,)
    if isinstance(shape.value, float):
        return "a number", (int, float)
    return "text", (str,)


def _said(at: str, wanted: str, answer: Any) -> str:
    return f"`{at or 'the answer'}` is {wanted} there, here {type(answer).__name__}"
