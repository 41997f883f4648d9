"""Adds to the wheel the one-line start-up file that lets a captured command load the bootstrap."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

START_UP_FILE = "rlaudit_bootstrap.pth"
# Read by the site module at the start of every interpreter of the environment, so: a look at one variable, or two below a capture.
START_UP_LINE = (
    "import os; os.environ.get('RLAUDIT_CAPTURE') and os.environ.get('RLAUDIT_DISABLE') != '1' and "
    "__import__('rlaudit.capture.bootstrap')\n"
)


class BuildWithStartUpFile(build_py):
    """Puts the start-up file beside the package, which is the top of site-packages.

    Not in an editable install, where the file would land in a folder that ``site`` does not read; there
    the launcher's sitecustomize folder does the work.
    """

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            Path(self.build_lib, START_UP_FILE).write_text(START_UP_LINE, encoding="utf-8")

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        added = [] if self.editable_mode else [str(Path(self.build_lib, START_UP_FILE))]
        return [*super().get_outputs(include_bytecode), *added]


setup(cmdclass={"build_py": BuildWithStartUpFile})
