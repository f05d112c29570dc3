"""Freed tensors stay with the process: a request does not fault its megabytes in anew."""

import subprocess
import sys

PROGRAM = """
import resource, sys
from blurfleet_preprocess.memory import keep_freed_blocks
if sys.argv[1] == "kept":
    assert keep_freed_blocks()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(100):
        blocks = [bytes(3 * 320 * 320 * 4) for _ in range(4)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


def test_a_requests_memory_is_faulted_in_once() -> None:
    assert faults("kept") < 100  # 100 rounds of 1200 pages each
    assert faults("as it is") > 1000
