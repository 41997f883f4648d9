"""Generate with vLLM, then record the reference's side, in two processes of one captured command.

Arguments: model, vLLM's dtype, the reference's dtype, pickle to write.
"""

import subprocess
import sys
from pathlib import Path

here = Path(__file__).parent
model, engine, reference, kept = sys.argv[1:5]
subprocess.run([sys.executable, here / "vllm_generate.py", model, engine, kept], check=True)
subprocess.run([sys.executable, here / "vllm_reference.py", model, kept, reference], check=True)
