"""A program whose packages are missing says which and what to do; a fault of ours is no such."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headgate.core.runtime import run_program


@pytest.mark.parametrize(("program", "package"), [("service", "service"), ("demo", "service.demo")])
def test_without_its_packages_a_program_says_which(program: str, package: str) -> None:
    code = (
        "import sys\n"
        "sys.modules['uvicorn'] = None\n"
        f"from headgate.{package}.__main__ import start\n"
        "sys.exit(start())\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert f"the {program} needs a package that is not installed (uvicorn)" in ended.stderr
    assert "pip install 'headgate[service]'" in ended.stderr


def test_a_module_of_ours_that_is_missing_is_a_fault() -> None:
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        run_program("headgate.nowhere:main", "it", extra="service")


def test_the_exit_code_is_the_program_s() -> None:
    assert run_program("os:getpid", "it", extra="service") > 0
