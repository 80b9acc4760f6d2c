// stretto-perf --device cuda over stand-in GPUs: every collective is timed by the GPU's clock, and wrong values are found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "perf/options.hpp"
#include "perf/run.hpp"
#include "stand_in/job_on_gpus.hpp"
#include "support/error.hpp"
#include "support/temporary_directory.hpp"

namespace perf {
namespace {

using stretto::JobOnGpus;
using stretto::Route;
using stretto::sentence_of;
using stretto::TemporaryDirectory;
using testing::HasSubstr;

Options options_of(std::vector<std::string> words) {
  words.insert(words.begin(), {"stretto-perf"});
  words.insert(words.end(), {"--device", "cuda", "--threads", "--nproc", "3", "-n", "4", "-w", "1", "-N", "1"});
  std::vector<char*> pointers;
  pointers.reserve(words.size());
  for (std::string& word : words) pointers.push_back(word.data());
  return parse_command_line(static_cast<int>(pointers.size()), pointers.data()).value();
}

// Returns the standard output and the error message.
std::string run_on(const JobOnGpus& job, const Options& options) {
  testing::internal::CaptureStdout();
  const std::string error = sentence_of([&] {
    job.run(3, [&](const stretto::Communicator& world) {
      check_methods(world, options);
      run_tests(world, options);
    });
  });
  return testing::internal::GetCapturedStdout() + error;
}

TEST(PerfOnGpus, EveryCollectiveIsRightAndTimed) {
  const TemporaryDirectory directory;
  const std::string path = directory / "figures.json";
  const Options options = options_of({"all", "-b", "96", "-e", "9600", "-f", "100", "-r", "all", "--json", path});
  for (const bool one_gpu_each : {false, true}) {
    const std::string text = run_on(JobOnGpus(one_gpu_each ? Route::nccl : Route::copies, {}), options);
    EXPECT_THAT(text, HasSubstr("the memory of a GPU (stand-in of threads)"));
    EXPECT_THAT(text, HasSubstr("Out of bounds values : 0 OK"));
    std::ifstream file(path);
    const nlohmann::json figures = nlohmann::json::parse(file);
    EXPECT_EQ(figures.at("device"), "cuda");
    EXPECT_EQ(figures.at("memory"), "gpu");
    std::set<std::string> collectives;
    for (const auto& row : figures.at("rows")) {
      collectives.insert(row.at("collective"));
      EXPECT_GT(row.at("time_us"), 0) << row;
      EXPECT_LE(row.at("p50_us"), row.at("p99_us")) << row;
    }
    EXPECT_EQ(collectives.size(), all_tests().size());
  }
}

TEST(PerfOnGpus, KnowsEveryTypeOperationAndAlgorithm) {
  for (const bool one_gpu_each : {false, true}) {
    const JobOnGpus job(one_gpu_each ? Route::nccl : Route::copies, {});
    for (const std::vector<std::string>& words :
         {std::vector<std::string>{"all_reduce", "-b", "960", "-e", "960", "-d", "all", "-o", "all", "--prepared"},
          {"reduce_scatter", "-b", "960", "-e", "960", "--algo", "all"},
          {"all_reduce", "-b", "9600", "-e", "9600", "--quantize", "int8"}}) {
      const std::string text = run_on(job, options_of(words));
      EXPECT_THAT(text, HasSubstr("Out of bounds values : 0 OK")) << words.front();
    }
  }
  EXPECT_THAT(run_on(JobOnGpus(Route::nccl, {}), options_of({"all_gather", "--algo", "nccl", "-b", "960", "-e", "960"})),
              HasSubstr("  nccl  "));
  EXPECT_THAT(run_on(JobOnGpus(Route::copies, {}), options_of({"all_gather", "--algo", "nccl"})),
              HasSubstr("does not do this call between these ranks"));
}

// The control: streams that ignore waits give wrong values, and the program reports them.
TEST(PerfOnGpus, FindsWhatIsWrong) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the control is the race that it would find";
#endif
  const JobOnGpus careless(Route::copies, {.longest_delay_us = 200, .ignores_waits = true});
  EXPECT_THAT(run_on(careless, options_of({"all_reduce", "-b", "9600", "-e", "9600"})), HasSubstr("values are wrong"));
}

TEST(PerfOnGpus, RefusesWhatIsOfTheHost) {
  const auto refusal = [](const std::vector<std::string>& words) { return sentence_of([&] { options_of(words); }); };
  EXPECT_THAT(refusal({"all_reduce", "--memory", "symmetric"}), HasSubstr("leave --memory out"));
  EXPECT_THAT(refusal({"all_reduce", "--memory", "malloc"}), HasSubstr("leave --memory out"));
}

}  // namespace
}  // namespace perf
