"""`python -m tools.regroup.rename FILE...`: names replaced throughout, as lists of renames say.

A list has one rename a line; `#` begins a comment:

    top core/wait_queue: Lines -> WaitQueues         a class, function or constant of a module
    member: lets_in -> admit                          a method, property or field, wherever it is
    token service/**,tests/programs/**: who -> principal     every use of a name in these files

`top` follows imports. `member` is for names that only this package gives to members. Planted faults
quote source: their quotes are renamed where the file they quote is.
"""

from __future__ import annotations

import ast
import fnmatch
import io
import keyword
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "headgate"
Spot = tuple[int, int]


def git_files() -> list[str]:
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files"], check=True, capture_output=True, text=True
    )
    return [
        name
        for name in listed.stdout.splitlines()
        if name.endswith(".py") and not name.startswith("tools/regroup") and "/proto/" not in name
    ]


class File:
    """One Python file: where its names stand."""

    def __init__(self, name: str) -> None:
        self.name, self.path = name, ROOT / name
        self.text = self.path.read_text()
        self.tree = ast.parse(self.text)
        self.edits: dict[Spot, tuple[str, str]] = {}
        self.tokens = [
            token
            for token in tokenize.generate_tokens(io.StringIO(self.text).readline)
            if token.type not in (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT)
        ]
        self.members = self._member_spots()

    def _member_spots(self) -> set[Spot]:
        """Where the bodies of classes define names: (line, name's column is not needed)."""
        found: set[Spot] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ClassDef):
                for one in node.body:
                    if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)):
                        column = one.col_offset + len(
                            "async def " if isinstance(one, ast.AsyncFunctionDef) else "def "
                        )
                        found.add((one.lineno, column))
                    elif isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                        found.add((one.target.lineno, one.target.col_offset))
                    elif isinstance(one, ast.Assign):
                        found |= {
                            (target.lineno, target.col_offset)
                            for target in one.targets
                            if isinstance(target, ast.Name)
                        }
        return found

    def keyword_spots(self) -> set[Spot]:
        return {
            (one.lineno, one.col_offset)
            for node in ast.walk(self.tree)
            if isinstance(node, (ast.Call, ast.ClassDef))
            for one in node.keywords
            if one.arg
        } | {(node.lineno, -1) for node in ast.walk(self.tree) if isinstance(node, ast.MatchClass)}

    def plan(self, token: tokenize.TokenInfo, new: str) -> None:
        before = self.edits.get(token.start)
        if before is not None and before[1] != new:
            raise SystemExit(f"{self.name}:{token.start}: {token.string} to {before[1]} or {new}?")
        self.edits[token.start] = (token.string, new)

    def write(self) -> None:
        if not self.edits:
            return
        lines = self.text.split("\n")
        for (line, column), (old, new) in sorted(self.edits.items(), reverse=True):
            raw = lines[line - 1]
            assert raw[column : column + len(old)] == old, (self.name, line, old)
            lines[line - 1] = raw[:column] + new + raw[column + len(old) :]
        self.path.write_text("\n".join(lines))


class Renaming:
    def __init__(self) -> None:
        self.files = {name: File(name) for name in git_files()}
        # what planted faults must follow: file below src/headgate -> old name -> new name
        self.quotes: dict[str, dict[str, str]] = defaultdict(dict)
        self.everywhere: dict[str, str] = {}
        self.documents: dict[str, str] = {}

    def top(self, module: str, old: str, new: str) -> None:
        home = f"src/headgate/{module}.py"
        if home not in self.files:
            home = f"src/headgate/{module}/__init__.py"
        dotted = ("headgate." + module.replace("/", ".")).removesuffix(".__init__")
        if not re.search(rf"^(class|def|async def|type)? ?{old}\b", self.files[home].text, re.M):
            raise SystemExit(f"{module} does not define {old}")
        package, _, last = dotted.rpartition(".")
        for file in self.files.values():
            direct = file.name == home
            aliases: set[str] = set()
            for node in ast.walk(file.tree):
                if isinstance(node, ast.ImportFrom):
                    if node.module == dotted:
                        for one in node.names:
                            if one.name == old and one.asname is None:
                                direct = True
                            elif one.name == old:
                                self.rename_in_import(file, node, old, new)
                    elif node.module == package:
                        aliases |= {
                            one.asname or one.name for one in node.names if one.name == last
                        }
            if direct:
                self.rename_bare(file, old, new)
            if aliases:
                self.rename_after(file, aliases, old, new)
            if (direct or aliases) and file.name.startswith("src/headgate/"):
                self.quotes[file.name.removeprefix("src/headgate/")][old] = new
            self.rename_strings(file, f"{dotted}.{old}", f"{dotted}.{new}")
        self.documents[old] = new

    def rename_in_import(self, file: File, node: ast.ImportFrom, old: str, new: str) -> None:
        assert node.end_lineno is not None
        for token in file.tokens:
            if token.string == old and node.lineno <= token.start[0] <= node.end_lineno:
                file.plan(token, new)
                return

    def rename_bare(self, file: File, old: str, new: str) -> None:
        """Uses of a module's own or imported name: not attributes, not keyword arguments."""
        keywords = file.keyword_spots()
        before = ""
        for token in file.tokens:
            if (
                token.type == tokenize.NAME
                and token.string == old
                and before != "."
                and token.start not in keywords
                and token.start not in file.members
            ):
                file.plan(token, new)
            before = token.string

    def rename_after(self, file: File, aliases: set[str], old: str, new: str) -> None:
        for one, dot, token in zip(file.tokens, file.tokens[1:], file.tokens[2:], strict=False):
            if token.string == old and dot.string == "." and one.string in aliases:
                file.plan(token, new)
        for at, token in enumerate(file.tokens[:-4]):  # monkeypatch.setattr(module, "name", …)
            if (
                token.string == "setattr"
                and file.tokens[at + 2].string in aliases
                and file.tokens[at + 4].string == f'"{old}"'
            ):
                file.plan(file.tokens[at + 4], f'"{new}"')

    def rename_strings(self, file: File, old: str, new: str) -> None:
        for token in file.tokens:
            if token.string == f'"{old}"':
                file.plan(token, f'"{new}"')

    def member(self, old: str, new: str) -> None:
        for file in self.files.values():
            keywords = file.keyword_spots()
            before = ""
            for token in file.tokens:
                if (
                    token.type == tokenize.NAME
                    and token.string == old
                    and (before == "." or token.start in file.members or token.start in keywords)
                ):
                    file.plan(token, new)
                before = token.string
        self.everywhere[old] = new
        self.documents[old] = new

    def token(self, globs: list[str], old: str, new: str) -> None:
        for file in self.files.values():
            if any(fnmatch.fnmatch(file.name, glob) for glob in globs):
                for token in file.tokens:
                    if token.type == tokenize.NAME and token.string == old:
                        file.plan(token, new)
                if file.name.startswith("src/headgate/"):
                    self.quotes[file.name.removeprefix("src/headgate/")][old] = new

    def write(self) -> None:
        for file in self.files.values():
            file.write()
        for file in self.files.values():
            if "Mutant(" in file.text:
                self.follow_faults(file.path)
        self.follow_documents()

    def follow_faults(self, path: Path) -> None:
        text = path.read_text()
        lines = text.split("\n")
        for node in ast.walk(ast.parse(text)):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Mutant")):
                continue
            parts = node.args[1:] + [one.value for one in node.keywords]
            target = next(
                (one.value for one in parts
                 if isinstance(one, ast.Constant) and str(one.value).endswith(".py")), None,
            )  # fmt: skip
            names = {**self.everywhere, **self.quotes.get(str(target), {})}
            for one in parts:
                if isinstance(one, ast.Tuple) or one is None:
                    continue
                assert one.end_lineno is not None
                for number in range(one.lineno - 1, one.end_lineno):
                    lines[number] = replaced(lines[number], names, self.everywhere)
        path.write_text("\n".join(lines))

    def follow_documents(self) -> None:
        """Names in backticks."""
        for path in [*ROOT.glob("docs/**/*.md"), ROOT / "README.md"]:
            text = path.read_text()
            new = re.sub(
                r"`([A-Za-z_]+)(\(\))?`",
                lambda m: f"`{self.documents.get(m[1], m[1])}{m[2] or ''}`"
                if m[1][0].isupper() else m[0],
                text,
            )  # fmt: skip
            if new != text:
                path.write_text(new)


def replaced(line: str, names: dict[str, str], members: dict[str, str]) -> str:
    def one(found: re.Match[str]) -> str:
        name = found[0]
        if name not in names:
            return name
        is_member = found.string[: found.start()].endswith((".", "def "))
        return names[name] if name not in members or is_member else name

    return re.sub(r"\b[A-Za-z_]\w*\b", one, line)


def main() -> int:
    renaming = Renaming()
    for listed in sys.argv[1:]:
        for raw in Path(listed).read_text().splitlines():
            line = raw.partition("#")[0].strip()
            if not line:
                continue
            found = re.fullmatch(r"(top|member|token) ?(.*?): (\w+) -> (\w+)", line)
            if found is None:
                raise SystemExit(f"{listed}: {raw!r} is not a rename")
            kind, where, old, new = found.groups()
            if keyword.iskeyword(new):
                raise SystemExit(f"{new} is a keyword")
            if kind == "top":
                renaming.top(where, old, new)
            elif kind == "member":
                renaming.member(old, new)
            else:
                renaming.token([f"{one}" for one in where.split(",")], old, new)
    renaming.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
