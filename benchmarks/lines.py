"""How much code there is: lines of src without blanks, comments and docstrings, file by file."""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "rl_training"


def code_lines(path: Path) -> int:
    """Lines of a file that hold a token which is neither a comment nor part of a docstring."""
    text = path.read_text(encoding="utf-8")
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        # A text that stands alone documents what stands before it, also in a class.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(code - docstrings)


def main() -> None:
    """Print the files, longest first with `--files`, and the total."""
    counts = {path.relative_to(SOURCE).as_posix(): code_lines(path) for path in sorted(SOURCE.rglob("*.py"))}
    if "--files" in sys.argv:
        for name, count in sorted(counts.items(), key=lambda item: -item[1]):
            print(f"{count:5d}  {name}")
    print(f"{sum(counts.values())} lines of code in {len(counts)} files")


if __name__ == "__main__":
    main()
