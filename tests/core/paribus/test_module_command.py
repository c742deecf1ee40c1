"""`python -m paribus`."""

import subprocess
import sys

import paribus


def test_the_package_is_a_command() -> None:
    command = [sys.executable, "-m", "paribus", "--version"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert paribus.__version__ in process.stdout
