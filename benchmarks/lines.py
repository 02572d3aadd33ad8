"""How much code there is: lines of src without blanks, comments and docstrings, file by file.

python benchmarks/lines.py                                       # the total
python benchmarks/lines.py --files                               # every file, longest first
python benchmarks/lines.py --without '*/dqn.py' '*/ppo.py'       # the total without some files
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from fnmatch import fnmatch
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
    """Print the total, and the files if asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="print every file, longest first")
    parser.add_argument("--without", nargs="+", default=[], metavar="PATTERN", help="files that are not counted")
    arguments = parser.parse_args()
    names = {path.relative_to(SOURCE).as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}
    counted = [name for name in names if not any(fnmatch(name, pattern) for pattern in arguments.without)]
    counts = {name: code_lines(names[name]) for name in counted}
    if arguments.files:
        for name, count in sorted(counts.items(), key=lambda item: -item[1]):
            print(f"{count:5d}  {name}")
    print(f"{sum(counts.values())} lines of code in {len(counts)} files")


if __name__ == "__main__":
    main()
