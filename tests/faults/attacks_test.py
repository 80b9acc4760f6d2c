"""Strangers attack the ports of a job, while its ranks meet and while they train: losses are those of an undisturbed job, and descriptors
and memory do not grow. Two seconds of each attack, or STRETTO_TEST_ATTACK_SECONDS."""
import contextlib
import itertools
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

from harness import FOREVER, FaultTest, free_port, in_turns, listeners_of, losses, until
from strangers import ATTACKS, UCX

from perf.comparisons.namespaces import PORT, CommandFailed, Network, obstacle

SECONDS = float(os.environ.get("STRETTO_TEST_ATTACK_SECONDS", 2))
# The ledger of operations grows to its size at first.
VARIABLES = {"STRETTO_JOB_SECRET": "of this job", "STRETTO_MEET_TIMEOUT": "200", "STRETTO_LEDGER": "1000"}
MEGABYTE = 1 << 20
# A job that is attacked while it meets keeps so many strangers, and closes them again (docs/security.md).
MOST_STRANGERS = 128


def descriptors_of(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def memory_of(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return 1024 * sum(int(line.split()[1]) for line in status.splitlines() if line.startswith(("RssAnon", "RssShmem")))


class Recorder:
    """Stands between two ranks that meet, and keeps what the arriving one says."""

    def __init__(self, port):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.words = b""
        threading.Thread(target=self.serve, args=(port,), daemon=True).start()

    def serve(self, port):
        rank, _ = self.listener.accept()
        rank0 = socket.create_connection(("127.0.0.1", port))
        threading.Thread(target=self.pass_on, args=(rank0, rank, False), daemon=True).start()
        self.pass_on(rank, rank0, True)

    def pass_on(self, one, other, keeps):
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                self.words += data if keeps else b""
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)


# Prints the first packet of a connection between sockets of UCX that is made meanwhile, as hexadecimal digits.
SNIFF = f"""
import socket
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
print("ready", flush=True)
while True:
    packet = wire.recv(65536)
    at = packet.find(bytes.fromhex("{UCX.hex()}"))
    if at > 0:
        print(packet[at:].hex(), flush=True)
        break
"""


@in_turns(3)
class Attacks(FaultTest):

    def start_undisturbed(self):
        """A job that nobody attacks."""
        return self.start({"--nproc": 2, "--train-iters": FOREVER, "--log-dir": self.log("undisturbed")})

    def undisturbed_losses(self, run, steps):
        self.wait_for_steps(self.log("undisturbed"), steps)
        os.kill(run.process.pid, signal.SIGTERM)
        self.expect_success(run)
        return losses(self.log("undisturbed"))

    def attack(self, name, addresses, words, before=()):
        hosts = [f"{host}:{port}" for host, port in addresses]
        stranger = subprocess.Popen([*before, sys.executable, "-B", str(pathlib.Path(__file__).with_name("strangers.py")), name,
                                     str(SECONDS), *hosts], stdin=subprocess.PIPE)
        self.addCleanup(stranger.kill)
        stranger.stdin.write(words)
        stranger.stdin.close()
        return stranger

    def meet(self, ranks, name, steps, address, words, stranger, before=()):
        """Rank 1 comes when rank 0 has been attacked for half of the time."""
        rank0 = ranks(0)
        self.assertTrue(until(lambda: listeners_of(rank0.process.pid) == {address}, 20), listeners_of(rank0.process.pid))
        first = descriptors_of(rank0.process.pid), memory_of(rank0.process.pid)
        self.attack(name, [address], words, before)
        time.sleep(SECONDS / 2)
        self.assertLessEqual(descriptors_of(rank0.process.pid), first[0] + MOST_STRANGERS)
        self.assertLessEqual(memory_of(rank0.process.pid), first[1] + 8 * MEGABYTE)
        rank1 = ranks(1)
        self.wait_for_steps(self.log(name), steps)
        self.assertEqual(losses(self.log(name))[:steps], self.expected[:steps])
        for run in (rank0, rank1):
            self.assertEqual(run.errors, [])
            self.assertNotIn(address, listeners_of(run.process.pid))
        for run in (rank0, rank1):  # else the second one may be killed while it writes how the first one was lost
            run.process.send_signal(signal.SIGSTOP)
        for run in (rank0, rank1):
            run.kill_all()

    def test_while_ranks_meet(self):
        self.expected = self.undisturbed_losses(self.start_undisturbed(), 5)
        words = self.what_rank_1_says()
        for name in ATTACKS:
            with self.subTest(attack=name):
                port = free_port()
                flags = {"--train-iters": FOREVER, "--log-dir": self.log(name)}
                self.meet(lambda rank: self.start_rank(rank, 2, port, flags, variables=VARIABLES), name, 5, ("127.0.0.1", port), words, ())
        self.expect_nothing_left()

    def what_rank_1_says(self):
        port = free_port()
        rank0 = self.start_rank(0, 2, port, {}, variables=VARIABLES)
        self.assertTrue(until(lambda: listeners_of(rank0.process.pid), 20))
        recorder = Recorder(port)
        self.expect_success(self.start_rank(1, 2, recorder.port, {}, variables=VARIABLES), rank0)
        self.assertGreater(len(recorder.words), 100)
        return recorder.words

    def test_ranks_that_are_none(self):
        """Processes with another secret, of another job, and for a rank that is there."""
        port = free_port()
        flags = {"--log-dir": self.log("three"), "--global-batch-size": 12}
        rank = lambda number, size=3, **variables: self.start_rank(number, size, port, flags, variables={**VARIABLES, **variables})
        ranks = [rank(0), rank(1)]
        self.assertTrue(until(lambda: listeners_of(ranks[0].process.pid), 20))
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            wrong = {"differs": rank(2, STRETTO_JOB_SECRET="of another"), "believes in 4 ranks": rank(2, 4), "is outside 1..2": rank(3, 4),
                     "came twice": rank(1)}
            wrong["came twice"].process.wait()
            for sentence, run in wrong.items():
                self.assertEqual(self.status(run), 1)
        ranks.append(rank(2))
        self.expect_success(*ranks)
        self.expect_success(self.start({**flags, "--nproc": 3, "--log-dir": self.log("alone")}))
        self.assertEqual(losses(self.log("three")), losses(self.log("alone")))

    def sniff(self, before=()):
        sniffer = subprocess.Popen([*before, sys.executable, "-c", SNIFF], stdout=subprocess.PIPE, text=True)
        self.addCleanup(sniffer.kill)
        self.assertEqual(sniffer.stdout.readline(), "ready\n")
        return sniffer

    def train(self, pair, sniffer, attacks, places_of):
        """Attacks the ranks' ports of UCX, one attack after the other. places_of(listeners of each rank): from where which addresses
        are attacked."""
        words = bytes.fromhex(sniffer.stdout.readline())
        self.wait_for_steps(self.log("log"), 20)
        undisturbed = self.start_undisturbed()
        pids = [run.process.pid for run in pair]
        listeners = [listeners_of(pid) for pid in pids]
        use = lambda: ([descriptors_of(pid) for pid in pids], [memory_of(pid) for pid in pids])
        first = use()
        for name, (before, addresses) in itertools.product(attacks, places_of(*listeners)):
            with self.subTest(attack=name, addresses=addresses):
                stranger = self.attack(name, addresses, words, before)
                if name == "crowd":
                    time.sleep(min(SECONDS, 3))
                    self.assertLess(max(use()[0]), max(first[0]) + 50)
                stranger.wait()
                self.assertTrue(until(lambda: use()[0] == first[0], 20), (first, use(), [run.errors for run in pair]))
                for memory, was in zip(use()[1], first[1]):
                    self.assertLess(memory, was + 8 * MEGABYTE)
                self.assertEqual([listeners_of(pid) for pid in pids], listeners)
        os.kill(pids[0], signal.SIGTERM)
        self.expect_success(*pair)
        own = losses(self.log("log"))
        whole = self.undisturbed_losses(undisturbed, 20)
        common = min(len(own), len(whole))
        self.assertEqual(own[:common], whole[:common])
        self.expect_nothing_left()

    def test_while_they_train(self):
        self.need("UCX")
        if os.geteuid() != 0:
            self.skipTest("what ranks say is recorded by root only")
        sniffer, port = self.sniff(), free_port()
        pair = [self.start_rank(rank, 2, port, {"--train-iters": FOREVER, "--log-dir": self.log("log")},
                                variables={**VARIABLES, "STRETTO_TRANSPORT": "ucx"}) for rank in range(2)]
        # UCX aborts a process that a stranger greets as UCX does; only other hosts are kept from that (docs/security.md).
        self.train(pair, sniffer, ["scan", "garbage", "crowd", "trickle"], lambda *listeners: [((), sorted(set.union(*listeners)))])

    @unittest.skipIf(obstacle(), obstacle())
    def test_from_a_third_host_and_from_a_neighbour(self):
        self.need("UCX")
        try:
            network = Network([1, 1, 1], rate=None)
        except CommandFailed as reason:
            self.skipTest(str(reason))
        self.addCleanup(network.close)
        hosts = [host.inside() for host in network.hosts]
        sniffer = self.sniff(hosts[1])
        flags = {"--train-iters": FOREVER, "--log-dir": self.log("log")}
        pair = [self.start_rank(rank, 2, PORT, flags, network.addresses[0], VARIABLES, hosts[rank]) for rank in range(2)]

        def places(*listeners):
            """The third host attacks both ranks; somebody on rank 1's host attacks rank 1."""
            ports = [[address for address in of_rank if address[0] == network.addresses[rank]] for rank, of_rank in enumerate(listeners)]
            self.assertEqual([len(of_rank) for of_rank in ports], [1, 1], listeners)
            return [(hosts[2], ports[0] + ports[1]), (hosts[1], sorted(listeners[1]))]

        self.train(pair, sniffer, ATTACKS, places)


if __name__ == "__main__":
    unittest.main()
