"""Loaded by every Python of the standalone check: refuses what a project that was cut out would not have.

ISOLATION_REFUSED names packages (separated by commas) that cannot be imported; ISOLATION_ROOT is the repository, of
which only the environment and the folders ISOLATION_ALLOWED may be read.
"""

import os
import sys

REFUSED = set(filter(None, os.environ["ISOLATION_REFUSED"].split(",")))
ROOT = os.environ["ISOLATION_ROOT"] + os.sep
HERE = os.path.dirname(os.path.abspath(__file__))
ALLOWED = tuple(f + os.sep for f in (sys.prefix, HERE, *os.environ["ISOLATION_ALLOWED"].split(",")) if f)


class Refuse:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in REFUSED:
            raise ImportError(f"standalone check: {name} is another project; this one must run without it", name=name)
        return None


def refuse_files(event, arguments):
    if event == "open" and isinstance(arguments[0], str):
        path = os.path.abspath(arguments[0])
        if path.startswith(ROOT) and not path.startswith(ALLOWED):
            raise PermissionError(f"standalone check: {path} is outside the project's folder")


sys.meta_path.insert(0, Refuse)
sys.addaudithook(refuse_files)
