"""Generate with SGLang, then record the reference's side, in two processes of one captured command.

Arguments: script and its own arguments (folder, dtype, pickle, ...), then --, then the reference's dtype, temperature and divisor.
"""

import subprocess
import sys
from pathlib import Path

here = Path(__file__).parent
split = sys.argv.index("--")
script, *arguments = sys.argv[1:split]
subprocess.run([sys.executable, here / script, *arguments], check=True)
subprocess.run([sys.executable, here / "sglang_reference.py", arguments[2], *sys.argv[split + 1 :]], check=True)
