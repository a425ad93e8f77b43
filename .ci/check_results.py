"""Each README shows what stands in the results files; where the code has moved on since, a warning says so."""

from __future__ import annotations

import os
import sys

from project import TOOLS, Project, projects


def check(project: Project) -> list[str]:
    from iclr26_tools import results

    folder = os.path.relpath(project.folder)
    try:
        for message in results.stale(folder):
            print(f"warning: {message}")
        return results.check(folder)
    except (OSError, ValueError) as error:
        return [str(error)]


if __name__ == "__main__":
    with_results = [p for p in projects(sys.argv[1:]) if p.name != TOOLS and (p.folder / "results").is_dir()]
    problems = [problem for project in with_results for problem in check(project)]
    print("\n".join(problems) or f"READMEs show their results ({len(with_results)} projects with results)")
    sys.exit(bool(problems))
