"""The environment of a program under test: that of the test, without what looks like a launcher's or would change the tested behaviour."""
import os
import re

# UCX_MEM_* is kept: a build with sanitizers needs it.
FOREIGN = re.compile(r"(RANK|LOCAL_RANK|WORLD_SIZE|MASTER_\w+|(OMPI|PMIX?|MPIR|SLURM|STRETTO|NCCL|UCX(?!_MEM)|TORCHELASTIC)_\w+)$")


def clean_environment(more=None):
    own = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
    return {**own, "OMP_NUM_THREADS": "1", "STRETTO_CALIBRATE": "off", **(more or {})}
