"""Each paper's README has its sections, and every install address in the repository is the one of project.py."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from project import REPOSITORY, ROOT, TOOLS, Project, projects

# What a README tells -> how a heading says it. The idea may also stand between the title and the first heading.
SECTIONS = {
    "the idea": r"\bidea\b",
    "the commands": r"\bcommands?\b|\bquick|\brun it\b|\btry it\b|\bstart\b",
    "what was measured": r"\bmeasured\b|\bresults?\b",
    "the paper-scale recipe": r"\bpaper[- ]scale\b|\bpaper'?s? size\b|\bat scale\b|\brecipes?\b",
    "what differs from the official code": r"\bdiffer|\bofficial\b",
    "how to cite": r"\bcit(e|ing|ation)\b",
}
ADDRESS = re.compile(r"git\+(https?://[^\s\"'`)>#@]+)")


def check(project: Project, root: Path) -> list[str]:
    problems = []
    for file in project.files():
        if file.suffix in (".md", ".py", ".toml", ".txt", ".yaml"):
            problems += check_addresses(file, root)
    readme = project.folder / "README.md"
    if not readme.exists():
        return [*problems, f"{project.name}: no README.md"]
    if project.name == TOOLS:
        return problems
    text = re.sub(r"^```.*?^```", "", readme.read_text(), flags=re.M | re.S)  # a comment in a shell block is no heading
    headings = [h.lower().replace("’", "'") for h in re.findall(r"^#{2,4} (.+)$", text, re.M)]
    introduction = re.split(r"^#{2,4} ", re.sub(r"^# .*$", "", text, count=1, flags=re.M), maxsplit=1, flags=re.M)[0]
    for section, pattern in SECTIONS.items():
        told = any(re.search(pattern, heading) for heading in headings)
        if not told and not (section == "the idea" and len(introduction.split()) >= 20):
            problems.append(f"{readme.relative_to(root)}: no heading tells {section}")
    return problems


def check_addresses(file: Path, root: Path) -> list[str]:
    return [
        f"{file.relative_to(root)}:{number}: installs from {address}, not from {REPOSITORY}"
        for number, line in enumerate(file.read_text().splitlines(), start=1)
        for address in ADDRESS.findall(line)
        if address != REPOSITORY
    ]


if __name__ == "__main__":
    problems = [p for project in projects(sys.argv[1:]) for p in check(project, ROOT)]
    problems += check_addresses(ROOT / "README.md", ROOT) if (ROOT / "README.md").exists() else []
    print("\n".join(problems) or "READMEs have their sections")
    sys.exit(bool(problems))
