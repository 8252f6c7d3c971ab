"""scripts/environment.sh, with a Python that only writes down what pip is asked for."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FAKE_PYTHON = f"""#!{shutil.which("bash")}
case "$1 $2" in
    "-m venv")
        echo venv >>"$LOG"
        mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-m pip")
        [ "$3" = --version ] && exit
        echo "pip ${{*:3}}" >>"$LOG"
        exit "${{PIP_STATUS:-0}}" ;;
    *)
        exec "{sys.executable}" "$@" ;;
esac
"""
"""Makes copies of itself where asked for a virtual environment; all else is the real Python."""


@dataclass(frozen=True)
class Checkout:
    """A copy of what the set-up reads, and a PATH on which python3 is the fake."""

    root: Path
    path: Path

    def prepare(self, extra: str, pip_status: int = 0) -> subprocess.CompletedProcess[str]:
        script = self.root / "scripts" / "environment.sh"
        command = f'set -euo pipefail; . "{script}"; prepare_environment "{extra}"'
        environment = {
            "PATH": f"{self.path}:{os.defpath}",
            "LOG": str(self.root / "log"),
            "PIP_STATUS": str(pip_status),
        }
        (self.root / "log").write_text("")
        return subprocess.run(
            ["bash", "-c", command], env=environment, cwd="/", capture_output=True, text=True
        )

    @property
    def log(self) -> list[str]:
        """What the last `prepare` asked of Python: 'venv', or pip's last two words."""
        lines = (self.root / "log").read_text().splitlines()
        return [line if line == "venv" else " ".join(line.split()[-2:]) for line in lines]


def write_program(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    root, path = tmp_path / "a checkout", tmp_path / "bin"
    (root / "scripts").mkdir(parents=True)
    path.mkdir()
    for name in ("scripts/environment.sh", "pyproject.toml", "constraints.txt"):
        shutil.copyfile(ROOT / name, root / name)
    write_program(path / "python3.11", FAKE_PYTHON)
    return Checkout(root, path)


def test_the_second_run_installs_nothing(checkout: Checkout) -> None:
    assert checkout.prepare("test").returncode == 0
    assert checkout.log == ["venv", "-e .[test]"]
    second = checkout.prepare("test")
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert checkout.log == []


def test_the_package_alone_is_part_of_the_test_extra_but_not_the_reverse(
    checkout: Checkout,
) -> None:
    checkout.prepare("")
    assert checkout.log == ["venv", "-e ."]
    checkout.prepare("test")
    assert checkout.log == ["-e .[test]"]
    (checkout.root / ".venv" / "installed-package").unlink()
    checkout.prepare("")
    assert checkout.log == []


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_changed_requirements_are_installed(checkout: Checkout, name: str) -> None:
    checkout.prepare("test")
    with (checkout.root / name).open("a") as file:
        file.write("# changed\n")
    checkout.prepare("test")
    assert checkout.log == ["-e .[test]"]


def test_a_moved_checkout_is_installed_again(checkout: Checkout) -> None:
    checkout.prepare("test")
    moved = Checkout(checkout.root.rename(checkout.root.with_name("moved")), checkout.path)
    moved.prepare("test")
    assert moved.log == ["-e .[test]"]


def test_what_pip_could_not_install_is_tried_again_in_the_same_environment(
    checkout: Checkout,
) -> None:
    failed = checkout.prepare("test", pip_status=1)
    assert failed.returncode == 1
    assert "Set-up failed" in failed.stderr
    assert checkout.prepare("test").returncode == 0
    assert checkout.log == ["-e .[test]"]


def test_an_environment_whose_installation_was_killed_is_made_anew(checkout: Checkout) -> None:
    checkout.prepare("test")
    with (checkout.root / "constraints.txt").open("a") as file:
        file.write("# changed\n")
    assert checkout.prepare("test", pip_status=137).returncode == 137
    assert checkout.prepare("test").returncode == 0
    assert checkout.log == ["venv", "-e .[test]"]
    checkout.prepare("test")
    assert checkout.log == []


def test_the_package_does_not_run_on_what_a_killed_installation_left(checkout: Checkout) -> None:
    checkout.prepare("")
    checkout.prepare("test", pip_status=137)
    checkout.prepare("")
    assert checkout.log == ["venv", "-e ."]


def test_an_environment_whose_python_is_gone_is_made_anew(checkout: Checkout) -> None:
    checkout.prepare("test")
    (checkout.root / ".venv" / "bin" / "python").unlink()
    checkout.prepare("test")
    assert checkout.log == ["venv", "-e .[test]"]


def of_version(major: int, minor: int) -> str:
    """A Python that takes itself for another version."""
    code = f"import sys; sys.version_info = ({major}, {minor}, 0); exec(sys.argv[1])"
    return f'exec "{sys.executable}" -c "{code}" "$2"'


def on_path_alone(checkout: Checkout, program: str) -> subprocess.CompletedProcess[str]:
    """find_python with nothing on PATH but dirname and a python3 that is `program`."""
    (checkout.path / "python3.11").unlink()
    if program:
        write_program(checkout.path / "python3", f"#!{shutil.which('bash')}\n{program}\n")
    (checkout.path / "dirname").symlink_to(shutil.which("dirname") or "")
    script = checkout.root / "scripts" / "environment.sh"
    return subprocess.run(
        [shutil.which("bash") or "", "-c", f'. "{script}"; find_python'],
        env={"PATH": str(checkout.path)},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("", "Python 3.11 or newer is needed, found none"),
        ("exit 127", "Python 3.11 or newer is needed, found none"),
        (of_version(3, 10), "Python 3.11 or newer is needed, found 3.10"),
        ('[[ "$2" = *ensurepip* ]] && exit 1; echo 3.13 1', "apt-get install python3.13-venv"),
    ],
)
def test_a_missing_python_is_named(checkout: Checkout, program: str, message: str) -> None:
    result = on_path_alone(checkout, program)
    assert (result.returncode, result.stdout) == (1, "")
    assert message in result.stderr


@pytest.mark.parametrize("minor", [11, 14])
def test_a_python_that_fits_is_found(checkout: Checkout, minor: int) -> None:
    found = on_path_alone(checkout, of_version(3, minor))
    assert found.stdout == f"{checkout.path / 'python3'}\n"
