"""`python -m tools.regroup check|move|merge`: the modules of `src/headgate` regrouped by plan.txt.

`move` puts every module into its folder under its new name, one to one, so that git follows its
history; modules that will be merged wait there as `target__old`. `merge` then makes one module of
each group. Both rewrite imports, dotted names and paths in src, tests, bench, tools, docs and
pyproject.toml. Run each on a clean work tree, then `ruff check --fix`, `ruff format`, mypy and the
tests, and commit. What `merge` could not decide it prints.
"""

from __future__ import annotations

import ast
import collections
import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "headgate"
WIDTH = 98
SUFFIXES = (".py", ".pyi", ".md", ".toml", ".yaml", ".yml", ".json", ".tf", "", ".proto", ".sh")
DATA = {
    "dashboard/static": "service/dashboard/static",
    "infra/template.yaml": "aws/infra/template.yaml",
}
PACKAGES = {
    "dashboard": "service/dashboard",
    "demo": "service/demo",
    "aggregator": "aws/aggregator",
    "infra": "aws/infra",
    "service/proto": "service/grpc/proto",
}
# Names that would mean two things once their modules are one: file, what is there, what it becomes.
PREPARE = [
    ("stores/redis/keys.py", r"\bindex\((namespace\S*( str,)? entity_id)", r"bucket_index(\1"),
    ("stores/redis/buckets.py", r"\bkeys\.index\(", "keys.bucket_index("),
    ("service/port.py", r"\bItem\b", "ItemT"),
    ("service/port.py", r"\bResult\b", "ResultT"),
    ("service/port.py", r"\b_alone\b", "_call_one"),
    ("stores/dynamodb/once.py", r"\bATTEMPTS_MAX\b", "ONCE_ATTEMPTS_MAX"),
    ("stores/dynamodb/usual_opening.py", r"\b_made\b", "_template"),
    ("dashboard/preview.py", r"\bSHOWN_MAX\b", "OVER_SHOWN_MAX"),
    ("cli/entity_limits.py", r"\bdef add_to\(", "def add_limit_commands("),
    ("cli/entity_buckets.py", r"\bdef add_to\(", "def add_bucket_commands("),
    ("cli/entity.py", r"entity_limits\.add_to", "entity_limits.add_limit_commands"),
    ("cli/entity.py", r"entity_buckets\.add_to", "entity_buckets.add_bucket_commands"),
    ("cli/system.py", r"\bdef (set|get|delete)_defaults\(", r"def \1_system_defaults("),
    ("cli/limits_words.py", r"\bdef document\(", "def changes_document("),
    ("cli/limits.py", r"limits_words\.document\(", "limits_words.changes_document("),
    ("stores/redis/batches.py", r"\bkeys\b", "named"),
    ("stores/redis/scan.py", r"redis\.port import", "redis.port_calls import"),
    ("stores/dynamodb/gathering.py", r"\bPart\b", "Share"),
    ("cli/local_engine.py", r"\bdef install\(", "def install_engine("),
    ("cli/local.py", r"local_engine\.install\(", "local_engine.install_engine("),
    ("cli/audit_archived.py", r"\bdef archived\(", "def read_archived("),
    ("cli/audit.py", r"import archived as read$", "import read_archived"),
    ("cli/audit.py", r"events = read\(", "events = read_archived("),
]  # fmt: skip


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


def git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout


def read_plan() -> dict[str, list[str]]:
    """New module -> the old modules that make it; names are paths below `src/headgate`."""
    plan: dict[str, list[str]] = {}
    folder = ""
    for line in (Path(__file__).parent / "plan.txt").read_text().splitlines():
        if line.startswith("#") or not line.strip():
            continue
        if line.endswith(":"):
            folder = "" if line == ".:" else line[:-1] + "/"
        else:
            name, _, olds = line.strip().partition(" = ")
            plan[folder + name] = olds.split()
    return plan


def waiting_name(target: str, old: str) -> str:
    """Where a module waits to be merged into its target."""
    return f"{target}__{old.rpartition('/')[2]}"


def dotted(path: str) -> str:
    return ("headgate." + path.replace("/", ".")).removesuffix(".__init__")


def check(plan: dict[str, list[str]]) -> None:
    """Says what the plan leaves out, and which folders and modules break the rules of size."""
    have = {str(path.relative_to(SRC).with_suffix("")) for path in SRC.rglob("*.py")}
    olds = [old for group in plan.values() for old in group]
    say(f"named twice: {[old for old, n in collections.Counter(olds).items() if n > 1]}")
    say(f"not there: {sorted(set(olds) - have)}")
    say(f"stay: {sorted(one for one in have - set(olds) if 'proto' not in one)}")
    sizes = {
        target: sum((SRC / f"{old}.py").read_text().count("\n") for old in group if old in have)
        for target, group in plan.items()
    }
    folders = collections.defaultdict(set)
    for module in [*plan, *(have - set(olds))]:
        parts = module.split("/")
        for depth, part in enumerate(parts):
            if part != "__init__":
                folders["/".join(parts[:depth])].add(part)
    say(f"folders above 15: {[name or '.' for name, found in folders.items() if len(found) > 15]}")
    say(f"modules above 500: { {name: n for name, n in sizes.items() if n > 500} }")
    say(f"modules below 80: { {name: n for name, n in sizes.items() if n < 80} }")


class Move:
    """The first step: every module to its folder."""

    def __init__(self, plan: dict[str, list[str]]) -> None:
        self.places = {
            old: target if place == 0 else waiting_name(target, old)
            for target, group in plan.items()
            for place, old in enumerate(group)
            if (SRC / f"{old}.py").exists()
        }
        self.plan = plan
        moved = {old: new for old, new in self.places.items() if old != new}
        self.moved = moved
        self.modules = {dotted(old): dotted(new) for old, new in {**moved, **PACKAGES}.items()}
        self.old = {dotted(str(one.relative_to(SRC).with_suffix(""))) for one in SRC.rglob("*.py")}

    def run(self) -> None:
        self.prepare()
        self.move_files()
        for name in git("ls-files").splitlines():
            path = ROOT / name
            if path.is_file() and path.suffix in SUFFIXES and not name.startswith("tools/regroup"):
                self.rewrite(path)
        self.add_packages()

    def prepare(self) -> None:
        for file, before, after in PREPARE:
            path = SRC / file
            if path.exists():
                path.write_text(re.sub(before, after, path.read_text(), flags=re.MULTILINE))
        where = {
            old[4:]: target[4:].replace("/", ".")
            for target, group in self.plan.items()
            if target.startswith("cli/commands/")
            for old in group
        }
        table = SRC / "cli/table.py"  # it names modules by string
        entry = re.compile(r'(Entry\("[\w-]+", ")(\w+):')
        table.write_text(entry.sub(lambda m: f"{m[1]}{where.get(m[2], m[2])}:", table.read_text()))

    def move_files(self) -> None:
        """In two steps: a new name may be the old name of another."""
        pending = []
        git("mv", "src/headgate/service/proto", "src/headgate/service/_proto")
        for old, new in self.moved.items():
            source, target = SRC / f"{old}.py", SRC / f"{new}.py"
            spare = source.with_name("_moving_" + source.name)
            git("mv", str(source), str(spare))
            pending.append((spare, target))
        pending += [(SRC / old, SRC / new) for old, new in DATA.items()]
        pending.append((SRC / "service/_proto", SRC / PACKAGES["service/proto"]))
        for source, target in pending:
            target.parent.mkdir(parents=True, exist_ok=True)
            git("mv", str(source), str(target))

    def add_packages(self) -> None:
        for path in [*SRC.rglob("*.py")]:
            for folder in path.relative_to(SRC).parents:
                start = SRC / folder / "__init__.py"
                if not start.exists():
                    start.write_text('"""…"""\n')
                    say(f"write a docstring: {start.relative_to(ROOT)}")

    def new_name(self, name: str) -> str:
        """The name with the longest part of it that has moved replaced."""
        parts = name.split(".")
        for end in range(len(parts), 0, -1):
            head = ".".join(parts[:end])
            if head in self.modules:
                return ".".join([self.modules[head], *parts[end:]])
        return name

    def rewrite(self, path: Path) -> None:
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            return
        if path.suffix not in (".py", ".pyi"):
            new = self.rewrite_text(text)
        else:
            lines = self.rewrite_imports(text).split("\n")
            new = "\n".join(
                line
                if re.match(r"\s*(from|import) headgate", line) or "getLogger" in line
                else self.rewrite_text(line)
                for line in lines
            )
            if "mutants" in str(path):  # they name files below src/headgate
                files = {f"{old}.py": f"{new}.py" for old, new in self.moved.items()}
                new = re.sub(r'"([a-z_/0-9]+\.py)"', lambda m: f'"{files.get(m[1], m[1])}"', new)
        if new != text:
            path.write_text(new)

    def rewrite_text(self, text: str) -> str:
        """Dotted names and paths in strings, documents and configuration."""
        name = re.compile(r"(?<![\w./-])headgate(?:\.[a-z_][a-z_0-9]*)+")
        text = name.sub(lambda found: self.new_name(found[0]), text)
        paths = {f"{old}.py": f"{new}.py" for old, new in self.moved.items()}
        paths |= {f"{old}/": f"{new}/" for old, new in PACKAGES.items()} | DATA
        for old, new in paths.items():
            if old in text:
                text = re.sub(rf"(?<=headgate/){re.escape(old)}", new, text)
        return text

    def rewrite_imports(self, text: str) -> str:
        lines = text.split("\n")
        edits: list[tuple[int, int, list[str]]] = []
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headgate"):
                found = self.rewritten_import(node)
                if found is not None:
                    assert node.end_lineno is not None
                    edits.append((node.lineno - 1, node.end_lineno, found))
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name in self.modules:
                        line = lines[node.lineno - 1]
                        line = line.replace(alias.name, self.modules[alias.name])
                        edits.append((node.lineno - 1, node.lineno, [line]))
        for start, end, found in sorted(edits, reverse=True):
            lines[start:end] = found
        return "\n".join(lines)

    def rewritten_import(self, node: ast.ImportFrom) -> list[str] | None:
        """The import's lines, None where it stays as it is. Local names stay: code uses them."""
        assert node.module is not None
        groups: dict[str, list[str]] = {}
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            if whole in self.old or whole in self.modules:
                module, _, name = self.new_name(whole).rpartition(".")
            else:
                module, name = self.new_name(node.module), alias.name
            local = alias.asname or alias.name
            groups.setdefault(module, []).append(name if name == local else f"{name} as {local}")
        before = [
            alias.name if alias.asname is None else f"{alias.name} as {alias.asname}"
            for alias in node.names
        ]
        if groups == {node.module: before}:
            return None
        indent = " " * node.col_offset
        return [
            f"{indent}from {module} import {', '.join(names)}" for module, names in groups.items()
        ]


class Member:
    """One of the modules that become one."""

    def __init__(self, path: str, old: str) -> None:
        self.path, self.old, self.name = path, old, dotted(path)
        self.lines = (SRC / f"{path}.py").read_text().split("\n")
        self.parse()

    def parse(self) -> None:
        self.tree = ast.parse("\n".join(self.lines))

    def replace(self, spots: set[tuple[int, int]], before: str, after: str) -> None:
        for line, column in sorted(spots, reverse=True):
            raw = self.lines[line - 1].encode()
            end = column + len(before.encode())
            assert raw[column:end] == before.encode(), (self.path, line, before)
            self.lines[line - 1] = (raw[:column] + after.encode() + raw[end:]).decode()
        if spots:
            self.parse()

    def use_directly(self, siblings: dict[str, Member]) -> None:
        """`sibling.thing` becomes `thing`."""
        for node in [*ast.walk(self.tree)]:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if f"{node.module}.{alias.name}" in siblings:
                        local = alias.asname or alias.name
                        spots = {
                            (one.value.lineno, one.value.col_offset)
                            for one in ast.walk(self.tree)
                            if isinstance(one, ast.Attribute)
                            and isinstance(one.value, ast.Name)
                            and one.value.id == local
                        }
                        self.replace(spots, f"{local}.", "")


def names_defined(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Assign():
            names = [one for target in node.targets for one in ast.walk(target)]
            return [one.id for one in names if isinstance(one, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


class Merge:
    """The second step: the modules of each group become one."""

    def __init__(self, plan: dict[str, list[str]]) -> None:
        self.plan = plan
        self.problems: list[str] = []

    def run(self) -> None:
        for target, olds in self.plan.items():
            paths = [(target, olds[0]), *((waiting_name(target, old), old) for old in olds[1:])]
            there = [pair for pair in paths if (SRC / f"{pair[0]}.py").exists()]
            if len(there) > 1:
                self.merge(target, [Member(*pair) for pair in there])
        self.rename_everywhere()
        for problem in self.problems:
            say(problem)

    def merge(self, target: str, members: list[Member]) -> None:
        siblings = {member.name: member for member in members}
        for member in members:
            member.use_directly(siblings)
        ordered = self.in_order(target, members, siblings)
        repeated = self.find_collisions(target, ordered)
        imports: list[str] = []
        checking: list[str] = []
        bodies: list[str] = []
        for member in ordered:
            cuts = self.take_imports(member, siblings, imports, checking)
            cuts |= {line for path, line in repeated if path == member.path}
            rest = [line for at, line in enumerate(member.lines, 1) if at not in cuts]
            body = "\n".join(rest).strip("\n")
            doc = ast.get_docstring(member.tree, clean=False) or ""
            bodies.append(body if member is members[0] else f"{section(doc)}\n\n{body}")
        doc = ast.get_docstring(members[0].tree, clean=False) or ""
        text = (
            f'"""{doc}"""\n\nfrom __future__ import annotations\n\n' + "\n".join(imports) + "\n\n"
        )
        if checking:
            text += "if TYPE_CHECKING:\n" + "\n".join(checking) + "\n\n"
        (SRC / f"{target}.py").write_text(text + "\n\n\n".join(bodies) + "\n")
        for member in members[1:]:
            (SRC / f"{member.path}.py").unlink()

    def in_order(
        self, target: str, members: list[Member], siblings: dict[str, Member]
    ) -> list[Member]:
        """A module comes after those it imports."""
        needs = {
            member.path: {
                siblings[name].path
                for node in ast.walk(member.tree)
                if isinstance(node, ast.ImportFrom) and node.module
                for name in [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
                if name in siblings
            }
            - {member.path}
            for member in members
        }
        ordered: list[Member] = []
        left = [*members]
        while left:
            done = {member.path for member in ordered}
            ready = [member for member in left if needs[member.path] <= done]
            if not ready:
                self.problems.append(f"{target}: {[one.path for one in left]} import each other")
            ordered.append((ready or left)[0])
            left.remove(ordered[-1])
        return ordered

    def find_collisions(self, target: str, members: list[Member]) -> set[tuple[str, int]]:
        """Lines that say again what another member says; what differs is a problem."""
        homes: dict[str, list[tuple[Member, ast.stmt]]] = collections.defaultdict(list)
        for member in members:
            for node in member.tree.body:
                for name in names_defined(node):
                    homes[name].append((member, node))
        again: set[tuple[str, int]] = set()
        for name, places in homes.items():
            if len({member.path for member, _ in places}) < 2:
                continue
            if len({ast.dump(node) for _, node in places}) > 1:
                self.problems.append(f"{target}: {name} means {len(places)} things")
            for member, node in places[1:]:
                assert node.end_lineno is not None
                again |= {(member.path, line) for line in range(node.lineno, node.end_lineno + 1)}
        return again

    def take_imports(
        self,
        member: Member,
        siblings: dict[str, Member],
        imports: list[str],
        checking: list[str],
    ) -> set[int]:
        """Collects the imports; the lines that are to be left out of the body."""
        first = member.tree.body[0]
        assert first.end_lineno is not None
        cut = set(range(1, first.end_lineno + 1))
        for node in member.tree.body[1:]:
            block = [node]
            into = imports
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                block, into = node.body, checking
            elif not isinstance(node, (ast.Import, ast.ImportFrom)):
                continue
            assert node.end_lineno is not None
            cut |= set(range(node.lineno, node.end_lineno + 1))
            into += [text for one in block if (text := self.import_text(one, siblings))]
        for node in ast.walk(member.tree):  # imports of siblings inside functions
            if isinstance(node, ast.ImportFrom) and node.module in siblings:
                assert node.end_lineno is not None
                cut |= set(range(node.lineno, node.end_lineno + 1))
                if any(one.asname for one in node.names):
                    self.problems.append(f"{member.path}: an import under another name is gone")
        return cut

    def import_text(self, node: ast.stmt, siblings: dict[str, Member]) -> str:
        if isinstance(node, ast.ImportFrom):
            if node.module == "__future__" or node.module in siblings:
                return ""
            node.names = [one for one in node.names if f"{node.module}.{one.name}" not in siblings]
            if not node.names:
                return ""
        return " " * node.col_offset + ast.unparse(node)

    def rename_everywhere(self) -> None:
        """Whoever named a module that was merged names the one it is part of now."""
        names = {
            waiting_name(target, old).rpartition("/")[2]: target.rpartition("/")[2]
            for target, olds in self.plan.items()
            for old in olds[1:]
        }
        either = "|".join(sorted(names, key=len, reverse=True))
        alias = re.compile(rf"\bimport ({either}) as (\w+)\b")
        name = re.compile(rf"(?<![A-Za-z0-9_])(?:{either})(?![A-Za-z0-9_])")
        for listed in git("ls-files", "--cached", "--others", "--exclude-standard").splitlines():
            path = ROOT / listed
            if not path.is_file() or path.suffix not in SUFFIXES:
                continue
            try:
                text = path.read_text()
            except UnicodeDecodeError:
                continue
            new = alias.sub(lambda m: f"import {m[2]}" if names[m[1]] == m[2] else m[0], text)
            new = name.sub(lambda m: names[m[0]], new)
            if new != text:
                path.write_text(new)


def section(doc: str) -> str:
    """A module's docstring as the comment above its part of a merged module."""
    lines = ["-" * WIDTH]
    for line in doc.strip().split("\n"):
        lines += textwrap.wrap(line, WIDTH) or [""]
    return "\n".join(f"# {line}".rstrip() for line in lines)


def main() -> int:
    plan = read_plan()
    match sys.argv[1:]:
        case ["check"]:
            check(plan)
        case ["move"]:
            Move(plan).run()
        case ["merge"]:
            Merge(plan).run()
        case _:
            say(__doc__ or "")
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
