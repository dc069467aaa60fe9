"""`python notebooks/colab.py OWNER/NAME`: a Colab badge on every lesson, and a first cell that fetches that repository.

The lessons read files beside them, so Colab needs the repository, not only the package. Run again, it only changes the
address.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import nbformat

HERE = Path(__file__).resolve().parent
BADGE = "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
INSTALL = re.compile(r"(is None:\n)(?:    [%!].*\n)+")


def stamped(notebook: Any, name: str, repository: str) -> Any:
    """The notebook with its badge and its source.

    Raises:
        ValueError: ``repository`` is not OWNER/NAME, or the notebook's second cell installs nothing.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise ValueError(f"repository={repository!r}: write it as OWNER/NAME")
    first, setup = notebook.cells[:2]
    title, *rest = [line for line in first.source.split("\n") if not line.startswith(BADGE)]
    address = f"https://colab.research.google.com/github/{repository}/blob/main/notebooks/{name}"
    first.source = "\n".join([title, f"{BADGE}({address})", *rest])
    if not INSTALL.search(setup.source):
        raise ValueError(f"{name}: its second cell installs nothing where find_spec finds nothing")
    folder = repository.partition("/")[2]
    fetch = (
        f"    !git clone --quiet --depth 1 https://github.com/{repository}\n"
        f"    %pip install --quiet ./{folder}\n    %cd {folder}/notebooks\n"
    )
    setup.source = INSTALL.sub(lambda found: found.group(1) + fetch, setup.source)
    return notebook


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    for path in sorted(HERE.glob("[0-9]*.ipynb")):
        nbformat.write(stamped(nbformat.read(path, as_version=4), path.name, arguments[0]), path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
