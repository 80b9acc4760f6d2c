"""A user's mistake ends the program with one line that names the values; no process and no file is left."""
import gzip
import json
import math
import os
import re
import struct
import subprocess
import unittest

from harness import FOREVER, TRAIN, FaultTest, in_turns


@in_turns()
class BadInput(FaultTest):

    # A rank's message would begin with "error: rank".
    def expect_refusal_before_ranks_start(self, flags, words):
        self.expect_refusal(flags, words)
        run = self.runs[-1]
        self.assertEqual(run.process.returncode, 1)
        self.assertRegex(run.errors[0], r"^error: (?!rank ).*[.]$")

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
        fifo = self.directory / "fifo"
        os.mkfifo(fifo)
        self.expect_refusal({"--train-data": fifo}, [fifo, "no regular file"])
        self.expect_refusal({"--val-data": "/dev/zero"}, ["/dev/zero", "no regular file"])

    def test_places_for_logs(self):
        self.expect_refusal_before_ranks_start({"--log-dir": self.text / "log"}, [f"--log-dir {self.text}/log", "Not a directory"])
        self.expect_refusal_before_ranks_start({"--trace": self.directory}, [self.directory, "Is a directory"])
        log = self.directory / "log"
        (log / "loss.svg").mkdir(parents=True)  # which is written at the end only
        self.expect_refusal_before_ranks_start({"--log-dir": log}, [log / "loss.svg", "Is a directory"])

    def test_a_text_that_is_cut_off_during_training(self):
        run = self.start({"--nproc": 2, "--train-iters": FOREVER, "--log-dir": self.log("log")})
        self.wait_for_steps(self.log("log"), 3)
        os.truncate(self.text, 40)
        self.assertEqual(self.status(run), 1)
        self.assertTrue(run.errors)
        for error in run.errors:
            self.assertRegex(error, rf"^error: rank .: {self.text} had \d+ bytes and has 40 now")
        self.expect_nothing_left()

    def test_formats(self):
        headerless = self.directory / "train.bin"
        headerless.write_bytes(bytes(2000))
        self.expect_refusal({"--train-data": headerless}, [headerless, "--data-format nanogpt"])
        self.expect_refusal({"--data-format": "parquet"}, ["'parquet'", "auto, bytes, llm.c, nanogpt, megatron"])
        self.expect_refusal({"--data-format": "llm.c"}, [self.text, "20240520"])
        packed = self.directory / "packed"
        packed.write_bytes(gzip.compress(b"text"))
        self.expect_refusal({"--train-data": packed}, [packed, "gzip -dk", "--data-format bytes"])
        self.expect_refusal({"--data-format": "megatron"}, [f"{self.text}.idx", "No such file"])
        self.expect_refusal({"--train-data": headerless, "--data-format": "nanogpt", "--prompt": "The"}, ["'The'", "--vocab-file"])
        self.expect_refusal({"--vocab-file": self.text}, [f"--vocab-file '{self.text}'", "--merges-file ''"])

    def test_models_of_transformers(self):
        model, other = self.directory / "model", self.directory / "other"
        nothing = self.directory / "nothing"
        nothing.mkdir()
        self.expect_success(self.start({"--nproc": 2, "--tp": 2, "--train-iters": 1, "--export-hf": model}))
        self.expect_refusal({"--export-hf": model}, [f"something in {model}"])
        self.expect_refusal({"--export-hf": other, "--attention": "window:8"}, [other, "--attention"])
        self.expect_refusal_before_ranks_start({"--export-hf": self.text / "model"}, ["Cannot export", self.text])
        self.expect_refusal({"--load-hf": nothing}, [nothing / "config.json", "No such file"])
        self.expect_refusal({"--load-hf": model, "--hidden-size": 64}, ["--hidden-size 64", f"32 of {model}/config.json"])
        self.expect_refusal({"--load-hf": model, "--seq-length": 64}, ["--seq-length 64", "32"])
        self.expect_refusal({"--load-hf": model, "--load": nothing}, ["--load-hf", f"--load {nothing}"])
        self.expect_refusal({"--load-hf": model, "--resume": True, "--save": nothing}, ["--load-hf", "--resume"])
        sizes = {flag: None for flag in ("--num-layers", "--hidden-size", "--num-attention-heads", "--seq-length")}
        self.expect_success(self.start({"--nproc": 2, "--load-hf": model, "--train-iters": 1, **sizes}))
        with open(self.runs[-1].output_path, "rb") as output:  # with a sample of an untrained model in it
            self.assertIn(b"2 layers, 32 wide, 4 heads, 32 tokens a sequence", output.read())
        self.expect_success(self.start({"--nproc": 2, "--load-hf": model, "--train-iters": 1, "--seq-length": 16}))
        (model / "model.safetensors").unlink()
        self.expect_refusal({"--load-hf": model, "--nproc": 2}, [model, "no model.safetensors"])

    def test_shapes_that_do_not_divide(self):
        self.expect_refusal({"--hidden-size": 33}, ["hidden size of 33", "4 attention heads"])
        self.expect_refusal({"--num-attention-heads": 1, "--tp": 2}, ["1 attention heads", "2 tensor-parallel"])
        self.expect_refusal({"--global-batch-size": 7}, ["batch of 7", "microbatches of 2", "2 data-parallel"])
        self.expect_refusal({"--nproc": 3, "--tp": 2}, ["3 ranks", "--tp 2"])
        self.expect_refusal({"--nproc": 4, "--dp": 3}, ["--dp 3", "--tp 1", "4"])
        self.expect_refusal({"--tp": 0}, ["--tp 0"])
        self.expect_refusal({"--nproc": -1}, ["--nproc -1"])
        self.expect_refusal({"--num-layers": 0}, ["0 layers"])

    def test_pipelines(self):
        def refused(flags, *words):
            self.expect_refusal_before_ranks_start({"--pp": 2, "--num-layers": 4, **flags}, words)

        refused({"--pp": 0}, "--pp 0")
        refused({"--nproc": 3}, "3 ranks", "--pp 2")
        refused({"--nproc": 4, "--tp": 4}, "4 ranks", "--tp 4", "--pp 2")
        refused({"--num-layers": 1}, "1 layers", "2 parts")
        refused({"--schedule": "zb-v", "--num-layers": 3}, "3 layers", "4 parts")
        refused({"--schedule": "interleaved", "--virtual-stages": 2, "--global-batch-size": 6}, "interleaved", "2 stages", "not 3")
        refused({"--virtual-stages": 2}, "1f1b", "1 chunk", "not 2")
        refused({"--virtual-stages": 0}, "--virtual-stages", "0 not in range 1")
        refused({"--schedule": "zb-v", "--virtual-stages": 1}, "zb-v", "2 chunks", "not 1")
        refused({"--global-batch-size": 2 * (2**32 + 4)}, "microbatches", "4294967300")
        for layers in ("4", "2,1,1", "1,2", "0,4", "-1,5"):
            refused({"--pipeline-layers": layers}, f"parts, {layers}, have", "2 numbers", "sum 4")
        refused({"--pipeline-layers": "3,2"}, "2 numbers and the sum 5")
        for layers in ("2,many", "", "3,", "3;1"):
            refused({"--pipeline-layers": layers}, f"--pipeline-layers '{layers}' is no list")

    def test_schedules_in_files(self):
        file = self.directory / "schedule"

        def refused(text, *words, **flags):
            file.write_text(text)
            flags = {f"--{name}": value for name, value in flags.items()}
            self.expect_refusal_before_ranks_start({"--pp": 2, "--global-batch-size": 2, "--schedule": file, **flags}, words)

        def schedule(first, second, microbatches=1, stages=2):
            return "\n".join(["schedule mine", f"stages {stages}", f"microbatches {microbatches}", "chunks 1", "placement round_robin", "stage 0",
                              *first, "stage 1", *second, ""])

        first = ["forward 0 0", "send_forward 0 0", "receive_backward 0 0", "backward 0 0"]
        second = ["receive_forward 0 0", "forward 0 0", "backward 0 0", "send_backward 0 0"]
        right = schedule(first, second)
        file.write_text(right)
        self.expect_success(self.start({"--nproc": 2, "--pp": 2, "--global-batch-size": 2, "--train-iters": 1, "--schedule": file}))
        refused("", file)
        refused("\x00\xff\n" * 50, file, "Line 1")
        refused(right.replace("send_backward", "send_back"), file, "Line 15", "send_back")
        refused(right, file, "1 microbatches", "not for 4", **{"global-batch-size": 8})
        refused(right, file, "2 stages", "not for 1", nproc=1, pp=1)
        refused(right, file, "1 chunks", "not for 2", **{"virtual-stages": 2})
        # What check() refuses.
        refused(schedule(first[:3], second), file, "backward 0 0")
        refused(schedule([first[2], *first[:2], first[3]], second), file, "wait")
        # Names of no file that can be read.
        for path in (self.directory, self.directory / "missing", "2f2b", ""):
            self.expect_refusal_before_ranks_start({"--pp": 2, "--schedule": path}, [f"'{path}'", "neither", "1f1b"])

    def test_help_names_every_flag(self):
        done = subprocess.run([TRAIN, "--help"], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertTrue(all(character.isprintable() or character == "\n" for character in done.stdout), done.stdout)
        for flag in ("--nproc", "--dtype", "--train-data", "--resume", "--log-interval"):  # first, last, some between
            self.assertIn(flag, done.stdout)
        groups = re.findall(r"^(\w.*):$", done.stdout, re.M)
        self.assertLess(groups.index("Model"), groups.index("Data"))

    def test_flags(self):
        self.expect_refusal({"--colour": "red"}, ["--colour", "--help"])
        for wrong, right in (("--learning-rate", "--lr?"), ("--bf16", "--dtype bf16?"), ("--batch_size", "--micro-batch-size?"),
                             ("--train-iter", "--train-iters?"), ("--wieght-decay", "--weight-decay?"), ("--data-path=x", "--train-data?")):
            self.expect_refusal({wrong: True}, [wrong.split("=")[0], right])
        self.expect_refusal({"--dtype": "fp12"}, ["--dtype", "fp12", "bf16"])
        self.expect_refusal({"--train-iters": "many"}, ["--train-iters", "many"])
        self.expect_refusal({"--lr": -1}, ["--lr -1"])

    def test_methods_for_slow_links_that_do_not_go_together(self):
        onebit, rounds, powersgd, demo = {"--optimizer": "onebit-adam"}, {"--replicas": 2, "--diloco": 4}, {"--powersgd": 2}, {"--optimizer": "demo"}
        window = {"--pp": 2, "--schedule": "2bw", "--model": "llama", "--untied": True, "--zero": 1}
        for flags, word in ({**onebit, "--delay": 1}, "1-bit Adam"), ({**onebit, **rounds}, "1-bit Adam"), ({**onebit, **window}, "1-bit Adam"), \
                           ({**rounds, "--delay": 1}, "a delay of 1"), ({**window, "--delay": 1}, "Schedule 2bw reads"), ({"--pp": 2, "--schedule": "2bw", "--delay": 1}, "Schedule 2bw reads"), \
                           ({**window, **rounds, "--nproc": 4}, "choose a schedule with a flush"), \
                           ({**onebit, **powersgd}, "1-bit Adam exchanges its momentum"), ({**rounds, **powersgd}, "replicas sum none"), \
                           ({**window, **powersgd}, "without a flush"), ({**powersgd, "--delay": 1}, "leave delays"), \
                           ({**powersgd, "--zero": 3}, "ZeRO stage 3"), ({**powersgd, "--dtype": "fp64"}, "fp64 have"), \
                           ({**powersgd, "--zero": 2, "--offload": "gradients=/tmp"}, "/tmp"), \
                           ({**demo, "--delay": 1}, "DeMo exchanges its momentum"), ({**demo, **rounds}, "DeMo exchanges its momentum"), \
                           ({**demo, **window}, "DeMo exchanges its momentum"), ({**demo, **powersgd}, "DeMo exchanges its momentum"), \
                           ({**demo, "--zero": 3}, "ZeRO stage 3"), ({**demo, "--dtype": "fp64"}, "fp64 have"), \
                           ({**demo, "--zero": 2, "--offload": "gradients=/tmp"}, "/tmp"), \
                           ({**demo, "--offload": "optimizer=/tmp", "--speculate": True}, "speculation out of demo"):
            self.expect_refusal(flags, [word])
        self.expect_refusal_before_ranks_start({"--powersgd": -1}, ["--powersgd -1"])
        self.expect_refusal_before_ranks_start({"--powersgd-start": 5}, ["--powersgd-start 5", "--powersgd 4"])

    def test_flags_without_effect(self):
        self.expect_refusal_before_ranks_start({"--cp-layout": "striped"}, ["--cp-layout striped", "--cp 1"])
        self.expect_refusal_before_ranks_start({"--lr": 0.01, "--min-lr": 0.1}, ["--min-lr 0.1", "--lr 0.01"])
        self.expect_refusal_before_ranks_start({"--momentum": 0.5}, ["--momentum 0.5", "--optimizer adamw"])
        self.expect_refusal_before_ranks_start({"--optimizer": "sgd", "--momentum": 1}, ["--momentum 1"])
        self.expect_refusal_before_ranks_start({"--muon-scale": "keller"}, ["--muon-scale keller", "--optimizer adamw"])
        self.expect_refusal_before_ranks_start({"--optimizer": "sgd", "--muon-lr": 0.5}, ["--muon-lr 0.5", "--optimizer sgd"])
        self.expect_refusal_before_ranks_start({"--optimizer": "muon", "--momentum": 0.5}, ["--momentum 0.5", "--optimizer muon"])
        self.expect_refusal_before_ranks_start({"--optimizer": "muon", "--muon-momentum": 1}, ["--muon-momentum 1"])
        self.expect_refusal_before_ranks_start({"--optimizer": "muon", "--muon-lr": 0}, ["--muon-lr 0"])
        self.expect_refusal_before_ranks_start({"--optimizer": "muon", "--lora": 2}, ["--optimizer muon", "--lora 2"])
        self.expect_success(self.start({"--nproc": 2, "--optimizer": "muon", "--muon-scale": "keller", "--muon-lr": 0.01, "--zero": 2}))
        self.expect_refusal_before_ranks_start({"--muon-bf16": True}, ["--muon-bf16 has no effect", "--optimizer adamw"])
        self.expect_refusal({"--optimizer": "muon", "--muon-bf16": True, "--dtype": "fp64"}, ["bf16", "fp64"])
        self.expect_refusal_before_ranks_start({"--freeze-step": 5}, ["--freeze-step 5", "--optimizer adamw"])
        self.expect_refusal_before_ranks_start({"--optimizer": "onebit-adam", "--freeze-step": 0}, ["--freeze-step 0"])
        self.expect_refusal_before_ranks_start({"--optimizer": "onebit-adam", "--freeze-step": "2x"}, ["--freeze-step 2x"])
        self.expect_refusal_before_ranks_start({"--optimizer": "onebit-adam", "--momentum": 0.5}, ["--momentum 0.5", "onebit-adam"])
        self.expect_refusal({"--optimizer": "onebit-adam", "--zero": 3}, ["ZeRO stage 3"])
        self.expect_refusal_before_ranks_start({"--compression-topk": 5}, ["--compression-topk 5", "--optimizer adamw"])
        for flag, value, word in ("--compression-chunk", 257, "sides of 257"), ("--compression-topk", 0, "0 coefficients"), ("--compression-decay", 1, "decay of 1"):
            self.expect_refusal_before_ranks_start({"--optimizer": "demo", flag: value}, ["DeMo", word])
        self.expect_refusal_before_ranks_start({"--lr-warmup-iters": 6}, ["--lr-warmup-iters 6", "--train-iters 5"])
        self.expect_refusal_before_ranks_start({"--straggler-threshold": 0.2, "--nproc": 1}, ["--straggler-threshold 0.2", "1 ranks"])
        self.expect_refusal_before_ranks_start({"--straggler-threshold": 0.2, "--pp": 2}, ["--straggler-threshold 0.2", "--pp 2"])
        self.expect_refusal_before_ranks_start({"--first-step-timeout": 9, "--nproc": 1}, ["--first-step-timeout 9", "1 rank"])
        self.expect_success(self.start({"--nproc": 2, "--straggler-threshold": 0.2, "--first-step-timeout": 9, "--cp": 2, "--cp-layout": "striped",
                                        "--lr": 0.01, "--min-lr": 0.01, "--lr-warmup-iters": 5}))

    def test_replicas(self):
        self.expect_success(self.start({"--nproc": 2, "--check-replicas": 1, "--zero": 0}))
        self.expect_success(self.start({"--nproc": 4, "--tp": 2, "--check-replicas": 2, "--dtype": "bf16"}))
        self.expect_refusal({"--check-replicas": 1, "--zero": 3}, ["--check-replicas 1", "--zero 3"])
        self.expect_refusal({"--check-replicas": 1, "--tp": 2}, ["--check-replicas 1", "one of each parameter"])
        self.expect_refusal({"--check-replicas": -1}, ["--check-replicas -1"])

    def test_numbers(self):
        for flag, values in (("--train-iters", ("", " ", "9223372036854775808", "1e3", "0x10", "010", "5x")), ("--nproc", ("", "4294967297")),
                             ("--seed", ("", "-1", "18446744073709551616")), ("--lr", ("", "nan", "inf", "1e999", "0.1.2"))):
            for value in values:
                self.expect_refusal_before_ranks_start({flag: value}, [flag, f"{value}"])
        self.expect_success(self.start({"--nproc": 1, "--seed": 18446744073709551615, "--lr": "1E-3", "--train-iters": 1}))

    def test_sizes_beyond_any_memory(self):
        largest = 9223372036854775807
        self.expect_refusal({"--num-layers": largest}, [largest, "100000 layers"])
        self.expect_refusal({"--hidden-size": largest - 3}, [largest - 3, "parameters"])
        self.expect_refusal({"--vocab-size": largest}, [largest, "parameters"])
        self.expect_refusal({"--seq-length": 10**14}, ["sequence length 100000000000000"])
        self.expect_refusal({"--global-batch-size": largest - 3, "--micro-batch-size": 4}, ["batch of", largest - 3])

    def test_zero(self):
        self.expect_refusal({"--zero": 4}, ["--zero", "4", "0,1,2,3"])
        self.expect_refusal({"--zero": 2, "--qwz": "int8"}, ["ZeRO++", "stage 3, not 2"])
        self.expect_refusal({"--hpz-size": 2}, ["ZeRO++", "stage 3, not 1"])
        self.expect_refusal({"--zero": 3, "--hpz-size": 3}, ["hpZ size of 3 does not divide"])
        self.expect_refusal({"--zero": 3, "--qwz": "int4"}, ["--qwz", "int4", "int8"])
        self.expect_refusal({"--zero": 3, "--qgz-stochastic": True}, ["stochastic", "qgZ"])
        self.expect_refusal({"--zero": 3, "--prefetch": -1}, ["-1 units ahead"])
        self.expect_refusal({"--delay": 2}, ["--delay 2"])
        self.expect_refusal({"--delay": -1}, ["--delay -1"])
        self.expect_refusal({"--delay-from": 3}, ["behind 3 updates", "give a delay of 1"])
        self.expect_refusal({"--delay": 1, "--delay-from": -3}, ["behind -3 updates"])
        self.expect_refusal({"--zero": 3, "--delay": 1, "--qgz": "int8"}, ["qgZ int8", "a delay of 1"])
        self.expect_refusal({"--zero": 2, "--delay": 1, "--prefetch": 2}, ["--prefetch 2", "--delay 1"])
        self.expect_refusal({"--offload": "/tmp"}, ["--offload '/tmp'", "optimizer=DIRECTORY"])
        self.expect_refusal({"--offload": "optimizer=/tmp,ratio=2"}, ["ratio=", "from 0 to 1"])
        self.expect_refusal({"--offload": "optimizer=,ratio=0.5"}, ["optimizer=,ratio=0.5", "names no directory"])
        for what in ("optimizer", "activations"):
            twice = {"--offload": f"{what}=/tmp", f"--offload={what}=/var/tmp": True}
            self.expect_refusal(twice, [f"{what}=/var/tmp", f"comes after {what}=/tmp", "give one directory"])
        self.expect_refusal({"--offload": "gradients=/tmp", "--zero": 2, "--optimizer": "onebit-adam"}, ["1-bit Adam", "/tmp"])
        speculates = {"--speculate": True, "--offload": "optimizer=/tmp"}
        self.expect_refusal({"--speculate": True}, ["before the norm is known", "give the optimizer's state a directory"])
        self.expect_refusal({"--speculate": True, "--offload": "optimizer=/tmp,ratio=1"}, ["a ratio of 1", "give a smaller one"])
        self.expect_refusal({**speculates, "--delay": 1}, ["a delay of 1", "leave speculation out"])
        self.expect_refusal({**speculates, "--no-overlap": True}, ["no overlap forbids"])
        self.expect_refusal({**speculates, "--optimizer": "muon"}, ["leave speculation out of muon"])
        self.expect_refusal({**speculates, "--offload=gradients=/tmp": True, "--zero": 2}, ["gradients in memory, not in /tmp"])
        self.expect_refusal({"--offload": "optimizer=/none"}, ["--offload optimizer=/none", "No such file"])
        self.expect_refusal({"--offload": "gradients=/tmp"}, ["ZeRO stage 1", "/tmp", "give stage 2 or 3"])
        self.expect_refusal({"--offload": "values=/tmp", "--zero": 2}, ["ZeRO stage 2", "/tmp", "give stage 3"])
        self.expect_refusal({"--offload": "activations=/tmp"}, ["/tmp", "choose full recomputation"])
        self.expect_refusal({"--offload": "activations=/tmp,ratio=0.5"}, ["leave the ratio out"])
        self.expect_refusal({"--offload": "activations=/none", "--recompute": "full"}, ["--offload activations=/none", "No such file"])
        self.expect_refusal({"--offload": "values=/none", "--zero": 3}, ["--offload values=/none", "No such file"])

    def test_precision(self):
        self.expect_refusal({"--loss-scale": 8}, ["--loss-scale", "no effect without --dtype fp16"])
        self.expect_refusal({"--dtype": "fp16", "--loss-scale": 0}, ["cannot be scaled by 0"])
        self.expect_refusal({"--dtype": "fp16", "--loss-scale": 8, "--loss-scale-window": 5}, ["--loss-scale 8 is fixed"])
        self.expect_refusal({"--dtype": "fp16", "--loss-scale-window": 0}, ["after 0 steps"])
        self.expect_refusal({"--dtype": "bf16", "--grad-dtype": "fp16"}, ["bf16 values are kept in bf16 or fp32", "not in fp16"])
        self.expect_refusal({"--grad-dtype": "bf16"}, ["fp32 values are kept in fp32", "not in bf16"])
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
        # Tried before the first step, and nothing of the trial is left.
        forever = {"--train-iters": FOREVER}
        self.expect_refusal({**forever, "--save": self.text / "save"}, [f"--save {self.text}/save", "Not a directory"])
        self.expect_refusal({**forever, "--save": "/proc/save"}, ["--save /proc/save"])
        deep = self.directory / "a" / "b" / "c"
        self.expect_refusal({"--save": deep, "--lr": 1e30, "--train-iters": FOREVER}, ["loss"])
        self.assertFalse((self.directory / "a").exists())

    def test_checkpoints_say_their_model(self):
        """Sizes come from the checkpoint; a flag that says something else is refused, and so is what is no longer the same run."""
        save = self.directory / "save"
        sizes = ("--num-layers", "--hidden-size", "--num-attention-heads", "--seq-length")
        shape = {"--num-layers": 1, "--hidden-size": 48, "--num-attention-heads": 6, "--seq-length": 20, "--attention": "window:9"}
        without = {flag: None for flag in sizes}
        self.expect_success(self.start({"--nproc": 2, **shape, "--save": save, "--train-iters": 4}))
        checkpoint = save / "step_00000004"
        for begin in ({"--load": save}, {"--save": save, "--resume": True}, {"--save": save, "--resume": "auto"}):
            run = self.start({"--nproc": 2, **without, **begin, "--train-iters": 4})
            self.expect_success(run)
            self.assertIn("1 layers, 48 wide, 6 heads, 20 tokens a sequence", run.output)
            for flag in sizes:
                self.expect_refusal_before_ranks_start({**without, **begin, flag: 12}, [f"{flag} 12", shape[flag], checkpoint])
        resume = {**without, "--save": save, "--resume": True}
        for change, was in ({"--seed": 2}, "1"), ({"--attention": "dense"}, "window:9"), ({"--train-data": __file__}, "digest"):
            self.expect_refusal({**resume, **change}, [*list(change), was, "--allow-changes"])
        self.expect_refusal({"--allow-changes": True}, ["--resume"])
        changed = self.start({"--nproc": 2, **resume, "--seed": 2, "--allow-changes": True, "--lr": 2e-3, "--train-iters": 5})
        self.expect_success(changed)
        line = next(line for line in changed.output.splitlines() if line.startswith("Goes on after step 4 "))
        for words in ("--seed 2 instead of 1", "--lr 0.002 instead of 0.001", "--train-iters 5 instead of 4", "instead of 1.00e-04"):
            self.assertIn(words, line)
        self.assertNotIn("--weight-decay", line)
        # As version 0.2 and programs other than the trainer save: the flags say what the model is.
        index = json.loads((checkpoint / "index.json").read_text())
        index["notes"] = {"consumed_samples": "32"}
        (checkpoint / "index.json").write_text(json.dumps(index))
        self.expect_refusal({**without, "--load": checkpoint}, ["does not say", *sizes])
        self.expect_success(self.start({"--nproc": 2, **shape, "--load": checkpoint, "--train-iters": 1}))
        index["notes"] = {"consumed_samples": "-1"}
        (checkpoint / "index.json").write_text(json.dumps(index))
        (save / "latest").write_text("step_00000004\n")
        self.expect_refusal({**shape, "--save": save, "--resume": True}, [checkpoint, "-1"])

    def test_models_that_only_write(self):
        """Without a step there is nothing to train on."""
        save, model, vocabulary = (self.directory / name for name in ("save", "model", "vocabulary"))
        self.expect_success(self.start({"--nproc": 2, "--save": save, "--train-iters": 1}))
        nothing = {**{flag: None for flag in ("--train-data", "--num-layers", "--hidden-size", "--num-attention-heads", "--seq-length")},
                   "--nproc": 2, "--train-iters": 0}
        run = self.start({**nothing, "--load": save, "--prompt": "7 times", "--export-hf": model})
        self.expect_success(run)
        self.assertIn("--- a sample ---\n7 times", run.output)
        self.expect_success(self.start({**nothing, "--load-hf": model}))
        for flags in ({"--train-iters": 1}, {"--comm-report": True}, {"--val-data": self.text}):
            self.expect_refusal({**nothing, "--load": save, **flags}, ["--train-data"])

    def test_weights_that_are_none(self):
        save, model = self.directory / "save", self.directory / "model"
        self.expect_success(self.start({"--nproc": 2, "--save": save, "--train-iters": 1, "--export-hf": model}))
        file = model / "model.safetensors"
        whole = file.read_bytes()
        header = 8 + struct.unpack("<Q", whole[:8])[0]
        file.write_bytes(whole[:header] + struct.pack("<f", math.nan) + whole[header + 4:])
        self.expect_refusal({"--load-hf": model}, [file, "nan", "transformer.wte.weight"])
        file.write_bytes(whole.replace(b'"F32"', b'"I32"'))
        self.expect_refusal_before_ranks_start({"--load-hf": model}, [model, "I32", "transformer."])

    def test_settings(self):
        self.expect_refusal({}, ["STRETTO_FOO", "stretto-info"], {"STRETTO_FOO": "1"})
        self.expect_refusal({}, ["STRETTO_TRANSPORT='carrier-pigeon'", "auto, shm, ucx"],
                            {"STRETTO_TRANSPORT": "carrier-pigeon"})
        self.expect_refusal({}, ["STRETTO_TIMEOUT='soon'"], {"STRETTO_TIMEOUT": "soon"})
        fifo = self.directory / "fifo"
        os.mkfifo(fifo)
        for path in (fifo, "/dev/zero"):
            self.expect_refusal({}, [f"STRETTO_TUNING={path}", "no regular file"], {"STRETTO_TUNING": str(path)})

    def test_launchers(self):
        by_hand = {"--nproc": None}
        self.expect_refusal(by_hand, ["MASTER_ADDR", "MASTER_PORT"], {"RANK": "0", "WORLD_SIZE": "2"})
        self.expect_refusal(by_hand, ["RANK=2", "WORLD_SIZE=2"], {"RANK": "2", "WORLD_SIZE": "2"})


if __name__ == "__main__":
    unittest.main()
