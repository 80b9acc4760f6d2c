"""What goes wrong with the files of --offload: one sentence, nothing left behind, and checkpoints that stay whole."""
import os
import random
import shutil
import subprocess
import unittest

from harness import SECONDS_TO_END, FaultTest, group_of, in_turns, losses, until

# Without io_uring, the write (or, with FAIL_READS, the read) number FAIL_AT of the first process that gets there fails, if it is of
# a file without a name.
PRELOADED = r"""
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int io_uring_queue_init(unsigned entries, void* ring, unsigned flags) { return -EPERM; }

static atomic_int moves;
static int fails(int file, int reads) {
  if (reads != (getenv("FAIL_READS") != NULL)) return 0;
  char link[256] = {0}, name[32];
  snprintf(name, sizeof name, "/proc/self/fd/%d", file);
  if (readlink(name, link, sizeof link - 1) < 0 || !strstr(link, "(deleted)")) return 0;  // a file with a name
  if (getenv("FAIL_IN") && strncmp(link, getenv("FAIL_IN"), strlen(getenv("FAIL_IN")))) return 0;
  if (atomic_fetch_add(&moves, 1) + 1 != atoi(getenv("FAIL_AT"))) return 0;
  const int marker = open(getenv("FAIL_ONCE"), O_CREAT | O_EXCL | O_WRONLY, 0600);
  if (marker < 0) return 0;
  close(marker);
  errno = EIO;
  return 1;
}
ssize_t pwrite64(int file, const void* from, size_t bytes, off64_t at) {
  static ssize_t (*next)(int, const void*, size_t, off64_t);
  if (!next) next = dlsym(RTLD_NEXT, "pwrite64");
  return fails(file, 0) ? -1 : next(file, from, bytes, at);
}
ssize_t pwrite(int file, const void* from, size_t bytes, off_t at) { return pwrite64(file, from, bytes, at); }
ssize_t pread64(int file, void* to, size_t bytes, off64_t at) {
  static ssize_t (*next)(int, void*, size_t, off64_t);
  if (!next) next = dlsym(RTLD_NEXT, "pread64");
  return fails(file, 1) ? -1 : next(file, to, bytes, at);
}
ssize_t pread(int file, void* to, size_t bytes, off_t at) { return pread64(file, to, bytes, at); }
"""


# The first process that opens a file without a name may not.
REFUSED = r"""
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

static int opened(const char* name, const char* path, int flags, mode_t mode) {
  int (*next)(const char*, int, ...) = (int (*)(const char*, int, ...))dlsym(RTLD_NEXT, name);
  if ((flags & O_TMPFILE) == O_TMPFILE) {
    const int marker = next(getenv("FAIL_ONCE"), O_CREAT | O_EXCL | O_WRONLY, 0600);
    if (marker >= 0) {
      close(marker);
      errno = EACCES;
      return -1;
    }
  }
  return next(path, flags, mode);
}
static mode_t mode_of(int flags, va_list rest) { return flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; }
int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = mode_of(flags, rest);
  va_end(rest);
  return opened("open", path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = mode_of(flags, rest);
  va_end(rest);
  return opened("open64", path, flags, mode);
}
"""


@in_turns()
class Offload(FaultTest):
    ZERO = {"--nproc": 2, "--zero": 3, "--recompute": "full"}

    def setUp(self):
        super().setUp()
        self.scratch = self.directory / "scratch"
        self.scratch.mkdir()

    def command(self, flags):
        """With everything in files, unless flags say that it is in memory."""
        memory = flags.pop("memory", False)
        whats = [what for what in ("optimizer", "gradients", "values") if what != "gradients" or not flags.get("--speculate")]
        places = flags.pop("places", {what: self.scratch for what in whats})
        words = [word for what, place in places.items() for word in ("--offload", f"{what}={place}")]
        return super().command({**self.ZERO, **flags}) + ([] if memory else words)

    def expect_one_error(self, run, *words):
        self.assertNotEqual(self.status(run), 0)
        errors = [line for line in run.errors if line.startswith("error: ")]
        self.assertEqual(len(errors), 1, run.errors)
        for word in words:
            self.assertIn(word, errors[0])

    def whole(self, steps, **flags):
        log = self.log(f"whole-{len(self.runs)}")
        self.expect_success(self.start({"memory": True, "--train-iters": steps, "--log-dir": log, **flags}))
        return losses(log)

    @unittest.skipUnless(os.geteuid() == 0, "mounting a small disk takes root")
    def test_a_disk_that_is_too_small(self):
        mounting = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", self.scratch], stderr=subprocess.PIPE, text=True)
        if mounting.returncode != 0:
            self.skipTest(f"a tmpfs cannot be mounted here: {mounting.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", self.scratch], check=True)
        self.expect_one_error(self.start({}), str(self.scratch), "has no room for", "No space left on device")
        self.expect_nothing_left()
        self.assertEqual(list(self.scratch.iterdir()), [])

    def test_two_jobs_in_one_directory_that_disappears(self):
        """Their files have no names: neither another job nor the end of the directory reaches them."""
        expected = self.whole(20)
        runs = [self.start({"--train-iters": 20, "--log-dir": self.log(str(i))}) for i in range(2)]
        for i in range(2):
            self.wait_for_steps(self.log(str(i)), 2)
        self.assertEqual(list(self.scratch.iterdir()), [])
        self.scratch.rmdir()
        for i, run in enumerate(runs):
            self.expect_success(run)
            self.assertEqual(losses(self.log(str(i))), expected)

    def library(self, text):
        """A library that is loaded before others, made of this text in C."""
        compiler = shutil.which("cc")
        if compiler is None:
            self.skipTest("there is no C compiler")
        library = self.directory / "fails.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-D_GNU_SOURCE", "-x", "c", "-", "-o", library, "-ldl"],
                       input=text, text=True, check=True)
        return library

    def test_one_rank_that_cannot_make_its_file(self):
        """All ranks give up together, whatever the file is for."""
        library = self.library(REFUSED)
        for what in ("optimizer", "gradients", "values", "activations"):
            with self.subTest(what=what):
                marker = self.directory / f"failed-{what}"
                run = self.start({"memory": True, "--offload": f"{what}={self.scratch}"},
                                 variables={"LD_PRELOAD": str(library), "FAIL_ONCE": str(marker)})
                self.expect_one_error(run, str(self.scratch), "cannot hold a scratch file: Permission denied")
                self.assertTrue(marker.exists())
                self.expect_nothing_left()

    def test_one_rank_that_cannot_measure_its_files(self):
        marker = self.directory / "failed"
        run = self.start({"memory": True, "--zero": None, "--recompute": None, "--layout": "auto", "--offload": f"optimizer={self.scratch}"},
                         variables={"LD_PRELOAD": str(self.library(REFUSED)), "FAIL_ONCE": str(marker)})
        self.expect_one_error(run, str(self.scratch), "cannot hold a scratch file: Permission denied")
        self.assertTrue(marker.exists())
        self.expect_nothing_left()

    def test_sigkill_at_random_moments(self):
        """The newest checkpoint loads each time, and at the end the losses are those of a run that nobody has killed.
        STRETTO_KILLS=100 kills that often, half of them with late gradients; of the others, each second run speculates."""
        kills = int(os.environ.get("STRETTO_KILLS", 4))
        for delay in ({}, {"--delay": 1}):
            with self.subTest(**delay):
                self.kill_at_random_moments(kills // 2, delay)

    def kill_at_random_moments(self, kills, delay):
        steps = 300
        expected = self.whole(steps, **delay)
        saved = self.directory / f"saved-{len(delay)}"
        flags = {"--train-iters": steps, "--save": saved, "--save-interval": 1, "--keep": 3, **delay}
        moments = random.Random(56)
        killed = 0
        while killed < kills:
            has_one = (saved / "latest").exists()
            if has_one and self.newest(saved) == steps:
                shutil.rmtree(saved)  # it was fast, and begins anew
                continue
            speculates = not delay and killed % 2 == 1
            run = self.start({**flags, "--resume": has_one or None, "--speculate": speculates or None})
            ended = until(lambda: run.process.poll() is not None, moments.uniform(0, 2.5))
            if ended:
                self.expect_success(run)
                continue
            run.kill_all()
            killed += 1
            self.assertTrue(until(lambda: not group_of(run.process.pid), SECONDS_TO_END))
            self.assertEqual(list(self.scratch.iterdir()), [])
        newest = self.newest(saved) if (saved / "latest").exists() else 0
        if newest == steps:  # then the one before
            shutil.rmtree(saved / (saved / "latest").read_text().strip())
            newest -= 1
        last = self.log(f"last-{len(delay)}")
        self.expect_success(self.start({**flags, "--resume": newest > 0 or None, "--log-dir": last}))
        self.assertEqual(losses(last), expected[newest:])

    @staticmethod
    def newest(saved):
        return int((saved / "latest").read_text().split("_")[-1])

    def test_a_write_that_fails(self):
        library = self.library(PRELOADED)
        for name, way in (("plain", {}), ("delayed", {"--delay": 1}), ("speculates", {"--speculate": True})):
            with self.subTest(name):
                self.fail_to_write(library, name, way)

    def test_a_late_gradient_that_cannot_be_read(self):
        """An update behind the next step reads it, and nothing takes it from the mapped file. With one microbatch, nobody else reads gradients."""
        places = {"optimizer": self.directory, "gradients": self.scratch}
        flags = {"places": places, "--train-iters": 6, "--delay": 1, "--zero": 2, "--recompute": None, "--global-batch-size": 4}
        marker = self.directory / "failed-read"
        run = self.start(flags, variables={"LD_PRELOAD": str(self.library(PRELOADED)), "FAIL_READS": "1", "FAIL_IN": str(self.scratch), "FAIL_AT": "1",
                                           "FAIL_ONCE": str(marker)})
        self.expect_one_error(run, "The scratch file in", str(self.scratch), "cannot be read: Input/output error")
        self.assertTrue(marker.exists())
        self.expect_nothing_left()

    def fail_to_write(self, library, name, way):
        expected = self.whole(12, **({} if "--speculate" in way else way))
        saved = self.directory / f"saved-{name}"
        flags = {"--train-iters": 12, "--save": saved, "--save-interval": 1, **way}
        run = self.start(flags, variables={"LD_PRELOAD": str(library), "FAIL_AT": "20", "FAIL_ONCE": str(self.directory / f"failed-{name}")})
        self.expect_one_error(run, "The scratch file in", str(self.scratch), "cannot be written: Input/output error")
        self.assertIn("by pread and pwrite", run.output)
        self.assertTrue(until(lambda: not group_of(run.process.pid), SECONDS_TO_END))
        newest = self.newest(saved)
        self.assertGreater(newest, 0)
        self.expect_success(self.start({**flags, "--resume": True, "--log-dir": self.log(f"resumed-{name}")}))
        self.assertEqual(losses(self.log(f"resumed-{name}")), expected[newest:])


if __name__ == "__main__":
    unittest.main()
