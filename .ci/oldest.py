"""Constraints that hold every dependency to the oldest series that pyproject.toml allows: `>=2.2` to `==2.2.*`.

python .ci/oldest.py > constraints.txt && pip install -c constraints.txt -e '.[test]'
"""

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
given = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
bounds = {m[1]: m[2] for one in sorted(given) if (m := re.match(r"([\w.-]+)>=([\w.]+)", one))}
for name, low in bounds.items():
    print(f"{name}=={low if '.' in low else f'{low}.0'}.*")
