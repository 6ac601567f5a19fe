"""The packages: four top-level folders that import as parts of `expert_residency`.

A folder `sim/` of the checkout is the package `expert_residency.sim`, so that its name cannot collide with another
distribution's. All else stands in pyproject.toml, which has no way to say this over folders that are found.
"""

from setuptools import find_namespace_packages, setup

FOLDERS = ("hwmodels", "policies", "sim", "traces")


def packages() -> list[str]:
    """Every package by its import name; folders of data files are packages too, or their files would be lost."""
    found = [
        f"{folder}.{name}"
        for folder in FOLDERS
        for name in find_namespace_packages(folder, exclude=["*__pycache__*"])
    ]
    return ["expert_residency", *(f"expert_residency.{name}" for name in sorted([*FOLDERS, *found]))]


setup(
    packages=packages(),
    package_dir={
        "expert_residency": "expert_residency",
        **{f"expert_residency.{folder}": folder for folder in FOLDERS},
    },
)
