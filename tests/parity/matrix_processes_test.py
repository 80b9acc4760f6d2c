"""Runs a sample of the matrix's cells on processes, with two hosts where this machine can have them: network namespaces."""
import os
import subprocess
import sys

from perf.comparisons.namespaces import CommandFailed, Network, obstacle


def run(**variables):
    arguments = [word for word in sys.argv[1:] if word != "-v"]
    return subprocess.run([os.environ["MATRIX_PROGRAM"], *arguments], env={**os.environ, "OMP_NUM_THREADS": "1", **variables}).returncode


def main():
    if obstacle():
        return run(MATRIX_NO_HOSTS=obstacle())
    try:
        network = Network([4, 4], rate=None)
    except CommandFailed as reason:
        return run(MATRIX_NO_HOSTS=str(reason))
    with network:
        holders = [str(host.holder.pid) for host in network.hosts[:2]]
        return run(MATRIX_HOSTS=" ".join([network.addresses[0], *holders]))


if __name__ == "__main__":
    sys.exit(main())
