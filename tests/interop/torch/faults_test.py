"""What the others say of a rank that dies, hangs or leaves; and programs as a launcher starts them."""

import datetime
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

import torch
import torch.distributed as dist

import ranks
import stretto_torch
from support.programs import in_turns


REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
PERF = os.environ.get("PERF_PROGRAM", str(REPOSITORY / "build/bin/stretto-perf"))


def until_it_fails(call):
    while True:
        call()


def killed_in_collectives(rank):
    part = dist.new_group([0, 1, 2])
    tensor = torch.ones(100000)
    for _ in range(3):
        dist.all_reduce(tensor)
        if rank != 3:
            dist.all_reduce(tensor, group=part)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    work = dist.all_reduce(torch.ones(10), async_op=True)
    error = ranks.error_of(lambda: until_it_fails(lambda: dist.all_reduce(tensor)))
    assert "ank 2" in str(error) and "killed" in str(error), repr(error)
    error = ranks.error_of(work.get_future().wait)  # the future knows it, too
    assert "ank 2" in str(error), repr(error)
    if rank != 3:
        error = ranks.error_of(lambda: until_it_fails(lambda: dist.all_reduce(tensor, group=part)))
        assert "ank 2" in str(error), repr(error)
    error = ranks.error_of(lambda: until_it_fails(lambda: dist.all_reduce(tensor)))
    assert error is not None
    return time.monotonic() - begin


def killed_in_messages(rank):
    got = torch.zeros(4)
    if rank == 2:
        dist.send(torch.ones(4), 0)
        dist.recv(got, 1)
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        dist.recv(got, 2)
    elif rank == 1:
        dist.send(torch.ones(4), 2)
    for call in [lambda: dist.recv(got, 2), lambda: dist.recv(got), lambda: dist.send(torch.zeros(1000000), 2)]:
        error = ranks.error_of(call)
        assert error is not None and "ank 2" in str(error), repr(error)


def missing(rank):
    """A rank that does not come is named, on every other one, when the timeout is over."""
    if rank == 1:
        time.sleep(6)
        return None
    tensor = torch.ones(5)
    error = ranks.error_of(lambda: dist.all_reduce(tensor))
    assert " Timed out " in str(error)  # the words that programs look for
    assert "waited 4 s for rank" in str(error) and "1" in str(error).split("for rank")[1].split(" in ")[0], repr(error)
    error = ranks.error_of(lambda: dist.barrier())  # and the group is of no more use
    assert error is not None
    return str(error)


def missing_for_one_call(rank):
    """A call's own timeout."""
    if rank == 1:
        time.sleep(2)
        return
    options = dist.AllreduceOptions()
    options.timeout = datetime.timedelta(milliseconds=500)
    work = stretto_torch.backend_of().allreduce([torch.ones(5)], options)
    error = ranks.error_of(work.get_future().wait)
    assert "waited 0.5 s for rank 1" in str(error) and " Timed out " in str(error), repr(error)


def leaves_early(rank):
    if rank == 1:
        return
    time.sleep(0.3)  # most often after the other has left
    error = ranks.error_of(lambda: dist.all_reduce(torch.ones(5)))
    assert "ank 1" in str(error) and "left" in str(error), repr(error)


def mismatched(rank):
    """Counts and types that differ are named, where they would give wrong numbers."""
    different = dist.new_group([0, 1])
    error = ranks.error_of(lambda: dist.all_reduce(torch.ones(1000 * (rank + 1)), group=different))
    assert "all_reduce of 1000 f32 (sum)" in str(error) and "all_reduce of 2000 f32 (sum)" in str(error), repr(error)
    error = ranks.error_of(lambda: dist.all_reduce(torch.ones(10, dtype=[torch.float, torch.double][rank])))
    assert "of 10 f32" in str(error) and "of 10 f64" in str(error), repr(error)


PROGRAM = textwrap.dedent("""
    import os, sys
    import torch
    import torch.distributed as dist
    import stretto_torch
    dist.init_process_group("stretto")
    assert dist.get_backend() == "stretto"
    total = torch.ones(3) * (dist.get_rank() + 1)
    dist.all_reduce(total)
    assert total[0] == sum(range(1, dist.get_world_size() + 1)), total
    if "mismatch" in sys.argv:
        assert stretto_torch.backend_of() is not None
        try:
            dist.all_gather_object([None] * 2, 1) if dist.get_rank() == 0 else dist.all_reduce(total)
        except Exception as error:
            print("DIFFERS" if "ALLREDUCE" in str(error) or "all_reduce" in str(error) else f"says {error}", flush=True)
        os._exit(0)
    if "fail" in sys.argv and dist.get_rank() == 1:
        raise ValueError("the disk is full")
    if "fail" in sys.argv:
        dist.all_reduce(total)
    print("DONE", flush=True)
""")


def formed_later(rank):
    """Rank 1 comes when rank 0 has tried once, over the same store."""
    port = int(os.environ["MASTER_PORT"])
    store = dist.TCPStore("127.0.0.1", port, 2, rank == 0, timeout=datetime.timedelta(seconds=30))
    group_within = lambda seconds: stretto_torch._C.ProcessGroupStretto(store, rank, 2, datetime.timedelta(seconds=seconds))
    if rank == 0:
        error = ranks.error_of(lambda: group_within(0.5))
        assert " Timed out " in str(error), repr(error)
        store.set("rank 0 has tried", "")
        time.sleep(1)  # rank 1 looks for the meeting meanwhile
    store.get("rank 0 has tried")
    total = torch.ones(3)
    group = group_within(15)
    group.allreduce([total]).wait()
    assert total.tolist() == [2, 2, 2]


class Interrupted(BaseException):
    pass


def interrupted(call):
    """The call blocks until a signal's handler raises, the second time. Handlers that return do not end the wait."""
    calls = []

    def handler(*_):
        calls.append(1)
        if len(calls) > 1:
            raise Interrupted

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
    try:
        call()
    except Interrupted:
        assert len(calls) == 2, calls
        return
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    raise AssertionError(f"{call} has returned")


def waits_that_are_interrupted(rank):
    """Rank 1 comes to none of the calls until rank 0's have ended."""
    store = dist.distributed_c10d._get_default_store()
    groups = [dist.new_group([0, 1]) for _ in range(7)]
    tensor = torch.ones(1000)
    if rank == 0:
        behind = dist.all_reduce(tensor, group=groups[0], async_op=True)
        time.sleep(0.3)  # a worker has begun it
        for call in [lambda: dist.all_reduce(tensor, group=groups[0]),
                     behind.wait,
                     lambda: dist.all_reduce(tensor, group=groups[1]),
                     lambda: dist.barrier(group=groups[2]),
                     lambda: dist.all_gather_object([None] * 2, "text", group=groups[3]),
                     lambda: dist.recv(tensor, 1, group=groups[4]),
                     lambda: dist.send(torch.ones(1 << 22), 1, group=groups[5]),
                     lambda: stretto_torch.monitored_barrier(groups[6])]:
            interrupted(call)
        assert ranks.error_of(lambda: dist.all_reduce(tensor, group=groups[1])) is not None
        store.set("done", "")
    store.get("done")
    if rank == 1:
        error = ranks.error_of(lambda: until_it_fails(lambda: dist.all_reduce(tensor, group=groups[1])))
        assert "Interrupted" in str(error), repr(error)
    dist.barrier()  # another group is as it was


def meeting_that_is_interrupted(_):
    port = int(os.environ["MASTER_PORT"])
    store = dist.TCPStore("127.0.0.1", port, 1, True)
    for rank in (0, 1):
        here = dist.PrefixStore(str(rank), store)
        interrupted(lambda: stretto_torch._C.ProcessGroupStretto(here, rank, 2, datetime.timedelta(seconds=20)))


def shared_memory_is_refused(rank):
    """An operation that has no in-place form says so, with the tensors' own type and number of elements."""
    tensor = torch.arange(8.)
    for call in [lambda: dist.all_to_all_single(tensor, tensor), lambda: dist.all_to_all_single(tensor[:6], tensor[2:]),
                 lambda: dist.all_to_all(list(tensor.chunk(2)), list(tensor.chunk(2)))]:
        error = ranks.error_of(call)
        assert "share memory" in str(error) and "Float" in str(error), repr(error)
    error = ranks.error_of(lambda: stretto_torch.backend_of()._allgather_base(tensor, tensor[2:6]).wait())
    assert "of 4 and 8 elements of Float" in str(error), repr(error)
    own = tensor[4 * rank:4 * rank + 4]
    stretto_torch.backend_of()._allgather_base(tensor, own).wait()  # in place


@in_turns()
class Faults(unittest.TestCase):
    def test_signals_are_handled_in_blocking_calls(self):
        ranks.run(2, waits_that_are_interrupted, seconds=60)
        ranks.run(1, meeting_that_is_interrupted, backend=None)

    def test_ctrl_c(self):
        """As a user's program: KeyboardInterrupt in one rank ends both."""
        program = textwrap.dedent("""
            import os, sys, torch, torch.distributed as dist, stretto_torch
            dist.init_process_group("stretto")
            print("in", flush=True)
            if dist.get_rank() == 1:
                sys.stdin.read()
            dist.all_reduce(torch.ones(5))
        """)
        self.program.write_text(program)
        variables = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ranks.free_port())}
        started = [subprocess.Popen([sys.executable, str(self.program)], env={**variables, "RANK": str(rank)}, stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(2)]
        self.assertEqual([each.stdout.readline() for each in started], ["in\n"] * 2)
        time.sleep(0.5)
        started[0].send_signal(signal.SIGINT)
        _, said = started[0].communicate(timeout=30)
        self.assertIn("KeyboardInterrupt", said)
        _, heard = started[1].communicate(timeout=30)
        self.assertRegex(heard, "ank 0.*KeyboardInterrupt")

    def test_shared_memory_is_refused(self):
        ranks.run(2, shared_memory_is_refused, seconds=60)

    def test_a_package_without_its_module_says_why(self):
        package = pathlib.Path(stretto_torch.__file__).parent
        with tempfile.TemporaryDirectory() as folder:
            copied = pathlib.Path(folder) / "stretto_torch"
            copied.mkdir()
            for file in package.glob("*.py"):
                (copied / file.name).write_text(file.read_text())
            for module, words in [("", "built without PyTorch"), ("_C.cpython-38-x86_64-linux-gnu.so", "another Python")]:
                if module:
                    (copied / module).write_bytes(b"")
                done = subprocess.run([sys.executable, "-c", "import stretto_torch"], env={**os.environ, "PYTHONPATH": folder},
                                      capture_output=True, text=True, timeout=60)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(words, done.stderr)
                self.assertIn(sys.executable, done.stderr)

    def test_killed_in_collectives(self):
        for took in [each for each in ranks.run(4, killed_in_collectives, killed=[2], seconds=60) if each is not None]:
            self.assertLess(took, 60)

    def test_killed_in_messages(self):
        ranks.run(3, killed_in_messages, killed=[2], seconds=60)

    def test_missing(self):
        ranks.run(3, missing, seconds=4)

    def test_missing_for_one_call(self):
        ranks.run(2, missing_for_one_call, seconds=60)

    def test_leaves_early(self):
        ranks.run(2, leaves_early, seconds=60)

    def test_mismatched(self):
        ranks.run(2, mismatched, seconds=60)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.program = pathlib.Path(folder.name) / "program.py"
        self.program.write_text(PROGRAM)

    def test_under_torchrun(self):
        done = self.torchrun("--master_port", str(ranks.free_port()), str(self.program))
        self.assertEqual(done.stdout.count("DONE"), 2)

    @unittest.skipUnless(os.path.exists(PERF), "stretto-perf is not built")
    def test_a_program_of_stretto_under_torchrun(self):
        done = self.torchrun("--standalone", "--no_python", PERF, "all_reduce", "-b", "8", "-e", "8")  # its id is a UUID
        self.assertIn("2 ranks (processes)", done.stdout)

    def torchrun(self, *arguments):
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", *arguments]
        if torch.__version__.startswith("1."):  # it does not understand its own defaults under Python 3.11
            command[3:3] = ["--redirects", "7:1", "--tee", "7:1"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def test_detail_compares_all_calls(self):
        program = "import os, stretto_torch; print(os.environ.get('STRETTO_CHECK'))"
        for level, wanted in [("DETAIL", "1"), ("INFO", "None")]:
            done = subprocess.run([sys.executable, "-c", program], env={**os.environ, "TORCH_DISTRIBUTED_DEBUG": level},
                                  capture_output=True, text=True, timeout=60)
            self.assertEqual(done.stdout.strip(), wanted, done.stderr)
        for _, out, error in self.two_ranks("mismatch", TORCH_DISTRIBUTED_DEBUG="DETAIL"):
            self.assertIn("DIFFERS", out, error)

    def two_ranks(self, *arguments, **variables):
        """How the two end, and what they print. Without a launcher, which would take the other rank down when it sees the first one end."""
        variables = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ranks.free_port()),
                     **variables}
        started = [subprocess.Popen([sys.executable, str(self.program), *arguments], env={**variables, "RANK": str(rank)},
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(2)]
        printed = [each.communicate(timeout=60) for each in started]
        return [(each.returncode, *said) for each, said in zip(started, printed)]

    def test_an_exception_is_heard(self):
        (_, out, heard), (_, _, said) = ended = self.two_ranks("fail")
        self.assertEqual([status for status, _, _ in ended], [1, 1], heard + said)
        self.assertIn("ValueError: the disk is full", said)
        self.assertRegex(heard, "ank 1.*the disk is full")
        self.assertNotIn("DONE", out)

    def test_ranks_that_do_not_come(self):
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(ranks.free_port()))
        store = dist.TCPStore("127.0.0.1", ranks.free_port(), 1, True)
        second = datetime.timedelta(seconds=1)
        for rank in [0, 1]:
            error = ranks.error_of(
                lambda: stretto_torch._C.ProcessGroupStretto(dist.PrefixStore(str(rank), store), rank, 2, second))
            self.assertRegex(str(error), " Timed out .* 1 s")

    def test_a_group_that_was_not_formed_is_formed_later(self):
        ranks.run(2, formed_later, backend=None)


if __name__ == "__main__":
    unittest.main()
