// STRETTO_CPU_LEVEL holds before the first kernel of a process only, so each case runs in a process of its own.
#include "device/cpu/cpu_level.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstdio>
#include <cstdlib>
#include <dnnl.hpp>
#include <string>

#include "stretto/build.hpp"
#include "stretto/kernels.hpp"
#include "stretto/settings.hpp"
#include "variables.hpp"

namespace stretto {
namespace {

class CpuLevel : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

// Ends the process: with 0 if what the test says is true.
[[noreturn]] void end(bool success, const std::string& otherwise) {
  if (!success) std::fprintf(stderr, "%s\n", otherwise.c_str());
  std::exit(success ? 0 : 1);
}

// Highway's targets that this processor has, the best first, among them the one that is in use.
bool within(std::int64_t best_allowed) {
  const std::int64_t used = hwy::SupportedTargets() & -hwy::SupportedTargets();
  return used >= best_allowed;
}

void expect_level(const char* level, std::int64_t best_target, int onednn_isa) {
  EXPECT_EXIT(
      {
        setenv("STRETTO_CPU_LEVEL", level, 1);
        float x[] = {1, 2}, y[] = {3, 4};
        kernels::reduce(ReduceOp::sum, DType::f32, x, y, y, 2);
        const bool onednn_within = (dnnl_get_effective_cpu_isa() & ~onednn_isa) == 0;
        end(y[0] == 4 && y[1] == 6 && within(best_target) && onednn_within,
            vector_target() + " is used at level " + std::string(level));
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(CpuLevel, CapsHighwayAndOneDnn) {
  expect_level("avx512", HWY_AVX3, dnnl_cpu_isa_avx512_core);
  expect_level("avx2", HWY_AVX2, dnnl_cpu_isa_avx2);
  expect_level("baseline", HWY_SSSE3 << 1, dnnl_cpu_isa_sse41);
}

// The control, on processors with AVX2: without the level, better instructions are used.
TEST_F(CpuLevel, NativeUsesAllThatTheProcessorHas) {
  EXPECT_EXIT(
      {
        setenv("STRETTO_CPU_LEVEL", "native", 1);
        const std::int64_t before = hwy::SupportedTargets();
        kernels::cpu::cap_cpu_level();
        end(hwy::SupportedTargets() == before, "native has capped Highway");
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(CpuLevel, ALevelAboveTheProcessorCapsNothing) {
  EXPECT_EXIT(
      {
        setenv("STRETTO_CPU_LEVEL", "avx512", 1);
        const std::int64_t before = hwy::SupportedTargets();
        const bool has_more = (before & (HWY_AVX3 - 1)) != 0;
        kernels::cpu::cap_cpu_level();
        end((hwy::SupportedTargets() == before) != has_more, "the level has disabled what it allows");
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(CpuLevel, AnUnknownLevelIsRefusedByEveryKernel) {
  EXPECT_EXIT(
      {
        setenv("STRETTO_CPU_LEVEL", "avx3", 1);
        float x[] = {1}, y[] = {1};
        std::string sentence;
        for (int call = 0; call < 2; ++call) {
          sentence = sentence_of([&] { kernels::reduce(ReduceOp::sum, DType::f32, x, y, y, 1); });
        }
        end(sentence == "STRETTO_CPU_LEVEL='avx3' is not among its choices: native, avx512, avx2, baseline.", sentence);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(CpuLevel, OneDnnThatWasUsedBeforeCannotBeCapped) {
  EXPECT_EXIT(
      {
        const int all = dnnl_get_effective_cpu_isa();  // which fixes it
        setenv("STRETTO_CPU_LEVEL", "baseline", 1);
        const std::string sentence = sentence_of([] { kernels::cpu::cap_cpu_level(); });
        const bool is_above = (all & ~dnnl_cpu_isa_sse41) != 0;
        end((sentence.find("DNNL_MAX_CPU_ISA=SSE41") != std::string::npos) == is_above, sentence);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(CpuLevel, WhatEachLibraryUsesIsNamed) {
  const auto sets = instruction_sets();
  ASSERT_EQ(sets.size(), 3U);
  EXPECT_EQ(sets[0], (std::pair<std::string, std::string>("Highway", vector_target())));
  EXPECT_EQ(sets[1].first, "oneDNN");
  EXPECT_EQ(sets[2].first, "OpenBLAS");
  for (const auto& [library, set] : sets) EXPECT_NE(set, "") << library;
}

}  // namespace
}  // namespace stretto
