"""A user's mistake ends the program with one line that names the values; no process and no file is left."""
import subprocess
import unittest

from harness import TRAIN, FaultTest


class BadInput(FaultTest):

    def expect_refusal(self, flags, words, variables=None):
        with self.subTest(flags=flags, variables=variables):
            run = self.start({"--nproc": 2, **flags}, variables)
            self.assertNotEqual(self.status(run), 0)
            self.assertEqual(len(run.errors), 1, run.errors)
            for word in ["error: ", *words]:
                self.assertIn(str(word), run.errors[0])
            self.expect_nothing_left()

    def test_texts(self):
        missing = self.directory / "missing"
        empty = self.directory / "empty"
        empty.write_text("")
        short = self.directory / "short"
        short.write_text("x" * 40)
        self.expect_refusal({"--train-data": None}, ["--train-data"])
        self.expect_refusal({"--train-data": missing}, [missing, "No such file"])
        self.expect_refusal({"--train-data": self.directory}, [self.directory])
        self.expect_refusal({"--train-data": empty}, [empty, "empty"])
        self.expect_refusal({"--train-data": short}, [short, "32", "33"])
        self.expect_refusal({"--val-data": missing}, [missing])

    def test_shapes_that_do_not_divide(self):
        self.expect_refusal({"--hidden-size": 33}, ["--hidden-size 33", "--num-attention-heads 4"])
        self.expect_refusal({"--num-attention-heads": 1, "--tp": 2}, ["--num-attention-heads 1", "--tp 2"])
        self.expect_refusal({"--global-batch-size": 7}, ["--global-batch-size 7", "--micro-batch-size 2", "2 data-parallel"])
        self.expect_refusal({"--nproc": 3, "--tp": 2}, ["3 ranks", "--tp 2"])
        self.expect_refusal({"--nproc": 4, "--dp": 3}, ["--dp 3", "--tp 1", "4"])
        self.expect_refusal({"--tp": 0}, ["--tp 0"])
        self.expect_refusal({"--nproc": -1}, ["--nproc -1"])
        self.expect_refusal({"--num-layers": 0}, ["0 layers"])

    def test_help_names_every_flag(self):
        done = subprocess.run([TRAIN, "--help"], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertTrue(all(character.isprintable() or character == "\n" for character in done.stdout), done.stdout)
        for flag in ("--nproc", "--dtype", "--train-data", "--resume", "--log-interval"):  # first, last, some between
            self.assertIn(flag, done.stdout)

    def test_flags(self):
        self.expect_refusal({"--colour": "red"}, ["--colour", "--help"])
        self.expect_refusal({"--dtype": "fp12"}, ["--dtype", "fp12", "bf16"])
        self.expect_refusal({"--train-iters": "many"}, ["--train-iters", "many"])
        self.expect_refusal({"--lr": -1}, ["--lr -1"])

    def test_zero(self):
        self.expect_refusal({"--zero": 4}, ["--zero", "4", "0,1,2,3"])
        self.expect_refusal({"--zero": 2, "--qwz": "int8"}, ["ZeRO++", "stage 3, not 2"])
        self.expect_refusal({"--hpz-size": 2}, ["ZeRO++", "stage 3, not 1"])
        self.expect_refusal({"--zero": 3, "--hpz-size": 3}, ["hpZ size of 3 does not divide"])
        self.expect_refusal({"--zero": 3, "--qwz": "int4"}, ["--qwz", "int4", "int8"])
        self.expect_refusal({"--zero": 3, "--qgz-stochastic": True}, ["stochastic", "qgZ"])
        self.expect_refusal({"--zero": 3, "--prefetch": -1}, ["-1 units ahead"])

    def test_precision(self):
        self.expect_refusal({"--loss-scale": 8}, ["--loss-scale", "no effect without --dtype fp16"])
        self.expect_refusal({"--dtype": "fp16", "--loss-scale": 0}, ["cannot be scaled by 0"])
        self.expect_refusal({"--dtype": "fp16", "--loss-scale": 8, "--loss-scale-window": 5}, ["--loss-scale 8 is fixed"])
        self.expect_refusal({"--dtype": "fp16", "--loss-scale-window": 0}, ["after 0 steps"])
        self.expect_refusal({"--dtype": "bf16", "--grad-dtype": "fp16"}, ["bf16 values", "not in f16"])
        self.expect_refusal({"--grad-dtype": "bf16"}, ["f32 values", "not in bf16"])
        # Gradients overflow in every step: training stops, and says what to do.
        self.expect_refusal({"--dtype": "fp16", "--loss-scale": "1e30", "--train-iters": 30}, ["Steps 1 to 20", "--loss-scale", "bf16"])

    def test_memory(self):
        self.expect_refusal({"--partition-activations": True}, ["full recomputation"])
        self.expect_refusal({"--partition-activations": True, "--recompute": "full"}, ["1 tensor-parallel rank"])
        self.expect_refusal({"--recompute": "some"}, ["--recompute", "some", "selective"])
        self.expect_refusal({"--vocab-size": 100}, ["--vocab-size 100", "256"])
        self.expect_refusal({"--ranks": 4}, ["--dry-run"])
        self.expect_refusal({"--dry-run": True, "--nproc": 3, "--tp": 2}, ["3 ranks", "--tp 2"])
        self.expect_refusal({"--dry-run": True, "--ranks": 3}, ["--ranks 3", "--nproc 2"])
        self.expect_refusal({"--dry-run": True, "--json": "/nowhere/plan.json"}, ["/nowhere/plan.json"])

    def test_devices(self):
        self.expect_refusal({"--device": "tpu"}, ["tpu", "cpu or cuda"])
        # CUDA_VISIBLE_DEVICES hides a GPU of the machine, if there is one.
        for nproc in (1, 2):
            self.expect_refusal({"--device": "cuda", "--nproc": nproc}, ["CUDA"], {"CUDA_VISIBLE_DEVICES": ""})

    def test_checkpoints(self):
        nothing = self.directory / "nothing"
        nothing.mkdir()
        self.expect_refusal({"--resume": True}, ["--resume", "--save"])
        self.expect_refusal({"--load": nothing}, ["no checkpoint", nothing])
        self.expect_refusal({"--save": nothing, "--resume": True}, ["no checkpoint", nothing])
        self.expect_refusal({"--save-interval": 2}, ["--save-interval 2", "--save"])

    def test_settings(self):
        self.expect_refusal({}, ["STRETTO_FOO", "stretto-info"], {"STRETTO_FOO": "1"})
        self.expect_refusal({}, ["STRETTO_TRANSPORT='carrier-pigeon'", "auto, shm, ucx"],
                            {"STRETTO_TRANSPORT": "carrier-pigeon"})
        self.expect_refusal({}, ["STRETTO_TIMEOUT='soon'"], {"STRETTO_TIMEOUT": "soon"})

    def test_launchers(self):
        by_hand = {"--nproc": None}
        self.expect_refusal(by_hand, ["MASTER_ADDR", "MASTER_PORT"], {"RANK": "0", "WORLD_SIZE": "2"})
        self.expect_refusal(by_hand, ["RANK=2", "WORLD_SIZE=2"], {"RANK": "2", "WORLD_SIZE": "2"})


if __name__ == "__main__":
    unittest.main()
