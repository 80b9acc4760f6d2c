// STRETTO_CPU_LEVEL takes effect at the first kernel of a process, so each case runs in a process of its own.
#include "device/cpu/cpu_level.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "device/cpu/product_libraries.hpp"
#include "stretto/build.hpp"
#include "stretto/kernels.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

// check returns what is wrong, or an empty string.
template <class Check>
void expect_in_a_new_process(const char* level, Check check) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // starts the program again for this test alone
  const auto run = [&] {
    setenv("STRETTO_CPU_LEVEL", level, 1);
    const std::string fault = check();
    if (!fault.empty()) std::fprintf(stderr, "level %s: %s\n", level, fault.c_str());
    std::exit(fault.empty() ? 0 : 1);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

void add_two_numbers() {
  float x[] = {1, 2};
  float y[] = {3, 4};
  kernels::reduce(ReduceOp::sum, DType::f32, x, y, y, 2);
}

void multiply_two_numbers() {
  const Tensor x({1, 1}, DType::f32, Device::cpu);
  const Tensor product({1, 1}, DType::f32, Device::cpu);
  *x.data<float>() = 2;
  kernels::gemm(x, kernels::Transpose::no, x, kernels::Transpose::no, product, false);
}

TEST(CpuLevel, CapsHighwayAndOneDnn) {
  struct Case {
    const char* level;
    std::int64_t too_high;  // targets of Highway
    int onednn;
  };
  const Case cases[] = {
      {"avx512", HWY_AVX3_DL, dnnl_cpu_isa_avx512_core},
      {"avx2", HWY_AVX3_DL | HWY_AVX3, dnnl_cpu_isa_avx2},
      {"baseline", HWY_AVX3_DL | HWY_AVX3 | HWY_AVX2 | HWY_SSE4 | HWY_SSSE3, dnnl_cpu_isa_sse41},
  };
  for (const Case& each : cases) {
    expect_in_a_new_process(each.level, [&]() -> std::string {
      const std::int64_t all = hwy::SupportedTargets();
      add_two_numbers();
      multiply_two_numbers();
      const std::int64_t left = hwy::SupportedTargets();
      if ((left & each.too_high) != 0) return "Highway still has " + vector_target();
      if (left != (all & ~each.too_high)) return "Highway has lost targets within the level";
      return (dnnl::dnnl_get_effective_cpu_isa() & ~each.onednn) == 0 ? "" : "oneDNN is not capped";
    });
  }
}

TEST(CpuLevel, NativeCapsNothing) {
  expect_in_a_new_process("native", [] {
    const std::int64_t all = hwy::SupportedTargets();
    add_two_numbers();
    return hwy::SupportedTargets() == all ? "" : "Highway has lost targets";
  });
}

TEST(CpuLevel, AnUnknownLevelIsRefusedByEveryKernel) {
  expect_in_a_new_process("avx3", [] {
    const std::string expected = "STRETTO_CPU_LEVEL='avx3' is not among its choices: native, avx512, avx2, baseline.";
    const std::string first = sentence_of(add_two_numbers);
    const std::string second = sentence_of(add_two_numbers);
    return first == expected && second == expected ? std::string() : "'" + first + "', then '" + second + "'";
  });
}

TEST(CpuLevel, OneDnnThatWasUsedBeforeCannotBeCapped) {
  expect_in_a_new_process("baseline", [] {
    const int all = dnnl::dnnl_get_effective_cpu_isa();  // which fixes it
    const std::string sentence = sentence_of(multiply_two_numbers);
    const bool refused = sentence.find("DNNL_MAX_CPU_ISA=SSE41") != std::string::npos;
    return refused == ((all & ~dnnl_cpu_isa_sse41) != 0) ? std::string() : "'" + sentence + "'";
  });
}

TEST(CpuLevel, TheInstructionsOfEachLibraryAreNamed) {
  const auto sets = instruction_sets();
  ASSERT_EQ(sets.size(), 3U);
  EXPECT_EQ(sets[0], (std::pair<std::string, std::string>("Highway", vector_target())));
  EXPECT_EQ(sets[1].first, "oneDNN");
  EXPECT_EQ(sets[2].first, "OpenBLAS");
  for (const auto& [library, set] : sets) EXPECT_NE(set, "") << library;
}

}  // namespace
}  // namespace stretto
