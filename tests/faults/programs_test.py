"""Programs whose clients and executors are killed or halted at random."""
import itertools
import unittest

from harness import FaultTest, shared_memory
from soak_programs import ProgramsJob
from support.programs import EVERYTHING


class Programs(FaultTest):
    def test_others_go_on_and_name_who_is_lost(self):
        """Beside other tests, a rank may stand still for seconds, and look as one that is stopped does."""
        seeds = itertools.count()
        for _ in range(20 if EVERYTHING else 3):
            job = next(job for job in map(ProgramsJob, seeds) if not job.stops_any())
            with self.subTest(job=str(job)):
                self.addCleanup(job.close)
                job.perform(lambda: shared_memory() - self.shared_memory_before)


if __name__ == "__main__":
    unittest.main()
