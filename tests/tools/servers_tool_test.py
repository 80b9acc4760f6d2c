"""stretto-train --servers, seen from outside: the losses of data parallelism, what is printed and written, and what is refused by name; and
what stretto-info says of the servers meanwhile."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support.programs import ProgramTest, clean_environment, free_port, run_program  # noqa: E402

TRAIN, INFO = os.environ["TRAIN_PROGRAM"], os.environ["INFO_PROGRAM"]


class Servers(ProgramTest):
    def setUp(self):
        super().setUp()
        text = self.directory / "text"
        text.write_text("".join(f"{i} times {i} is {i * i}; " for i in range(1000)))
        self.model = [TRAIN, "--num-layers", 2, "--hidden-size", 32, "--num-attention-heads", 4, "--seq-length", 32, "--global-batch-size", 4,
                      "--micro-batch-size", 1, "--train-iters", 6, "--lr", 0.01, "--train-data", text, "--clip-grad", 0, "--eval-interval", 3,
                      "--sample-length", 5, "--log-interval", 1]

    def train(self, name, *words, steps=range(1, 7)):
        """What is printed, and the losses of each step, in training and validation."""
        output = self.succeeds(*self.model, "--deterministic", "--log-dir", self.directory / name, *words)
        lines = [json.loads(line) for line in (self.directory / name / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual([line["step"] for line in lines], list(steps))
        return output, [(line["loss"], line.get("val_loss")) for line in lines]

    def test_sequential_servers_are_data_parallelism(self):
        _, expected = self.train("plain", "--nproc", 2, "--export-hf", self.directory / "plain_hf")
        output, found = self.train("served", "--nproc", 4, "--servers", 2, "--export-hf", self.directory / "served_hf")
        self.assertEqual(found, expected)
        values, served_values = ((self.directory / name / "model.safetensors").read_bytes() for name in ("plain_hf", "served_hf"))
        self.assertEqual(served_values, values)
        self.assertIn("2 ranks: dp 2 x tp 1 x pp 1", output)
        self.assertIn("2 more ranks are servers, which hold the values and update them; consistency sequential", output)
        # The table of what was communicated has each unit's push and pull.
        self.assertRegex(output, r"servers +send +direct +gradients +\d+ ")
        self.assertRegex(output, r"servers +recv +direct +parameters +\d+ ")
        _, late = self.train("late", "--nproc", 4, "--servers", 2, "--consistency", "exact=1")
        self.assertNotEqual(late, expected)  # the control

    def test_a_resumed_run_has_the_losses_of_one_that_never_stopped(self):
        plain, served = ["--nproc", 2], ["--nproc", 4, "--servers", 2]
        for saver in (plain, served):
            saved = self.directory / f"saved by {len(saver)}"
            _, expected = self.train(f"all {len(saver)}", *saver, "--save", saved, "--save-interval", 3)
            self.assertEqual(sorted(path.name for path in saved.iterdir() if path.is_dir()), ["step_00000003", "step_00000006"])
            shutil.rmtree(saved / "step_00000006")
            for number, resumer in enumerate((plain, served, ["--nproc", 3, "--servers", 1], ["--nproc", 5, "--servers", 3])):
                with self.subTest(saver=saver, resumer=resumer):
                    here = self.directory / f"resumed by {number}"
                    shutil.copytree(saved, here, dirs_exist_ok=True)
                    _, losses = self.train(f"resumed {len(saver)} {number}", *resumer, "--save", here, "--resume", steps=range(4, 7))
                    self.assertEqual(losses, expected[3:])
                    shutil.rmtree(here)
            # The control: the values alone, with a state from zeros.
            _, losses = self.train(f"loaded {len(saver)}", *served, "--load", saved)
            self.assertNotEqual(losses[:3], expected[3:])
            self.assertLess(losses[0][0], expected[0][0])

    def test_what_servers_cannot_write_or_read_is_one_sentence(self):
        saved = self.directory / "saved"
        self.train("whole", "--nproc", 3, "--servers", 1, "--save", saved)
        shard = saved / "step_00000006" / "rank_00000.safetensors"
        shard.write_bytes(shard.read_bytes()[:-1] + b"?")
        said = self.refused(["rank_00000.safetensors"], *self.model, "--nproc", 3, "--servers", 1, "--load", saved)
        self.assertNotIn("internal", said)

    def test_other_consistencies_train(self):
        for consistency in ("bounded=2", "eventual"):
            _, losses = self.train(consistency, "--nproc", 3, "--servers", 1, "--consistency", consistency, "--optimizer", "sgd")
            self.assertLess(losses[-1][1], losses[0][0])
        _, losses = self.train("once", "--nproc", 3, "--servers", 1, "--consistency", "exact=2")
        self.assertEqual(self.train("again", "--nproc", 3, "--servers", 1, "--consistency", "exact=2")[1], losses)

    def test_servers_say_what_they_hold(self):
        port = free_port(2)
        addresses = [f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"]
        secret = {"STRETTO_JOB_SECRET": "a secret"}
        words = [*self.model, "--nproc", 4, "--servers", 2, "--train-iters", 1000000]
        with subprocess.Popen([*map(str, words)], env=clean_environment({"STRETTO_SERVERS_PORT": str(port), **secret}), stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
            try:
                deadline = time.monotonic() + 120
                while (said := run_program(INFO, "servers", *addresses, **secret)).returncode != 0 or ", version 0," in said.stdout:
                    self.assertLess(time.monotonic(), deadline, said.stderr)
                    time.sleep(0.1)
                self.assertEqual(said.stderr, "")
                for number in (1, 2):
                    self.assertRegex(said.stdout, rf"Server {number} of 2, rank {number + 1} of 4, process \d+: \d+ parts, \d+ bytes of dense tables, 0 copies")
                self.assertRegex(said.stdout, r"elements \d+ to \d+ of table \S+.*\n  version \d+, clocks of workers \d+ \d+, \d+ pushes and \d+ pulls wait; at rank [23]\n")
                self.refused(["STRETTO_JOB_SECRET differs"], INFO, "servers", addresses[0], STRETTO_JOB_SECRET="another")
                self.refused(["'nowhere' names no port"], INFO, "servers", "nowhere")
            finally:
                run.terminate()

    LONG = ["--train-iters", 200, "--eval-interval", 100]

    def lose_a_server(self, number, name, *words, steps=LONG):
        """Kills a server in the middle of a run; the run's exit code, what it says of it, and the losses of all steps that it has made."""
        port = free_port(2)
        run = [*map(str, [*self.model, "--deterministic", "--log-dir", self.directory / name, *steps, "--nproc", 4, "--servers", 2, *words])]
        with subprocess.Popen(run, env=clean_environment({"STRETTO_SERVERS_PORT": str(port)}), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True) as process:
            try:
                deadline = time.monotonic() + 120
                killed = None
                while killed is None and process.poll() is None:
                    self.assertLess(time.monotonic(), deadline)
                    said = run_program(INFO, "servers", f"127.0.0.1:{port + number}").stdout
                    found = re.search(r", process (\d+): .*  version (\d+), ", said, re.DOTALL)
                    if found and int(found[2]) >= 3:
                        killed = int(found[1])
                        os.kill(killed, signal.SIGKILL)
                self.assertIsNotNone(killed, "the run has ended before")
                _, errors = process.communicate(timeout=120)
            finally:
                process.kill()
        lines = (self.directory / name / "metrics.jsonl").read_text().splitlines()
        return process.returncode, errors, [(line["loss"], line.get("val_loss")) for line in map(json.loads, lines)]

    def test_training_goes_on_when_a_server_with_a_copy_is_killed(self):
        _, expected = self.train("undisturbed", "--nproc", 2, *self.LONG, steps=range(1, 201))
        for number in (0, 1):
            with self.subTest(number=number):
                saved = self.directory / f"saved {number}"
                code, errors, losses = self.lose_a_server(number, f"killed {number}", "--server-copies", 1, "--save", saved)
                self.assertEqual((code, losses), (0, expected), errors)
                self.assertRegex(errors, rf"The servers go on without rank {2 + number} of 4: Rank {2 + number} ")
                self.assertEqual([path.name for path in (saved / "step_00000200").glob("rank_*")], ["rank_00000.safetensors"])
        code, errors, losses = self.lose_a_server(0, "without copies")  # the control
        self.assertNotEqual(code, 0)
        self.assertRegex(errors, r"Lost with this server: elements \d+ to \d+")
        self.assertLess(len(losses), 200)

    def test_workers_may_wait_for_one_another_when_a_server_is_killed(self):
        """In validations and checkpoints, which take most of the time."""
        steps = ["--train-iters", 40, "--eval-interval", 1]
        _, expected = self.train("undisturbed", "--nproc", 2, *steps, steps=range(1, 41))
        for number in (0, 1):
            with self.subTest(number=number):
                saved = self.directory / f"saved {number}"
                code, errors, losses = self.lose_a_server(number, f"killed {number}", "--server-copies", 1, "--save", saved, "--save-interval", 1,
                                                          "--keep", 1, steps=steps)
                self.assertEqual((code, losses), (0, expected), errors)
                self.assertRegex(errors, rf"The servers go on without rank {2 + number} of 4: Rank {2 + number} ")
                self.assertEqual(sorted(path.name for path in (saved / "step_00000040").iterdir()), ["index.json", "rank_00000.safetensors"])

    def test_what_does_not_go_with_servers_is_refused(self):
        saved, exported = self.directory / "saved", self.directory / "exported"
        self.train("plain", "--nproc", 1, "--save", saved, "--export-hf", exported)
        for words, fragments in ((["--nproc", 2, "--servers", 2], ["--servers 2 of 2 ranks leave no worker"]),
                                 (["--nproc", 2, "--servers", -1], ["--servers -1 is no number of ranks"]),
                                 (["--nproc", 2, "--consistency", "eventual"], ["--consistency eventual has no effect without --servers"]),
                                 (["--nproc", 2, "--server-copies", 1], ["--server-copies 1 has no effect without --servers"]),
                                 (["--nproc", 3, "--servers", 1, "--server-copies", 1], ["--servers 1 cannot keep --server-copies 1", "give from 0 to 0"]),
                                 (["--servers", 2, "--server-copies", 1], ["--server-copies 1 needs --nproc"]),
                                 (["--nproc", 2, "--servers", 1, "--consistency", "loose"], ["--consistency 'loose' is unknown", "bounded=D"]),
                                 (["--nproc", 2, "--servers", 1, "--consistency", "bounded=x"], ["--consistency 'bounded=x' is unknown"]),
                                 (["--nproc", 2, "--servers", 1, "--clip-grad", 1], ["--clip-grad 1 needs the norm", "give --clip-grad 0"]),
                                 (["--nproc", 2, "--servers", 1, "--save", self.directory / "s", "--async-save"], ["--async-save does not go with --servers 1: servers write what they hold while workers wait"]),
                                 (["--nproc", 3, "--servers", 1, "--tp", 2], ["divides it over 2 ranks"]),
                                 (["--nproc", 2, "--servers", 1, "--zero", 3], ["leave ZeRO stage 3"]),
                                 (["--nproc", 2, "--servers", 1, "--dtype", "bf16"], ["not in bf16"]),
                                 (["--nproc", 2, "--servers", 1, "--optimizer", "muon"], ["by AdamW or SGD, and muon"]),
                                 (["--servers", 1, "--dry-run", "--ranks", 2], ["--dry-run does not go with --servers 1"]),
                                 (["--nproc", 2, "--servers", 1, "--lora", 4], ["--lora", "not those of adapters"]),
                                 (["--nproc", 2, "--servers", 1, "--elastic"], ["--elastic", "take over a lost worker's sequences", "with --server-copies N they go on"]),
                                 (["--nproc", 2, "--servers", 1, "--comm-report"], ["--comm-report", "it concerns ranks that sum gradients with one another"]),
                                 (["--nproc", 2, "--servers", 1, "--load-hf", exported], ["--load-hf does not go with --servers 1", "begin from --seed or a checkpoint of --load"]),
                                 (["--nproc", 2, "--servers", 1, "--replicate-state"], ["--replicate-state", "workers have no optimizer's state"]),
                                 (["--nproc", 2, "--servers", 1, "--relayout-on-signal", "--tp 2"], ["--relayout-on-signal", "there is one layout"]),
                                 (["--nproc", 2, "--servers", 1, "--load", saved, "--sample-only"], ["--sample-only", "sampling updates nothing"])):
            with self.subTest(words=words):
                self.refused(fragments, *self.model, *words)


if __name__ == "__main__":
    unittest.main()
