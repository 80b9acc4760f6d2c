#pragma once
#include <functional>
#include <string>
#include <vector>

#include "gpu_data.hpp"

// The cases that gpu_kernels measures.
namespace perf {

struct Case {
  std::string kernel, what;
  double bytes = 0;  // read and written by a call; 0: the call is not bound by bytes
  double flops = 0;
  // Makes a call on buffers of its own.
  std::function<std::function<void()>()> make;
};

Case copy_case();
std::vector<Case> collective_cases();  // what collectives call
std::vector<Case> row_cases();         // of elements and rows
std::vector<Case> product_cases();

constexpr std::int64_t gpt2_rows = 32 * 1024;  // GPT-2 124M, 32 sequences of 1024 tokens
constexpr std::int64_t gpt2_vocabulary = 50304;

inline double element_bytes(DType dtype) { return static_cast<double>(size_of(dtype)); }
inline std::string times(std::int64_t rows, std::int64_t columns) {
  return std::to_string(rows) + " x " + std::to_string(columns);
}

}  // namespace perf
